"""`carrel webhook`: decides about GPU pods before they are made.

It changes nothing but the review that it answers. Any number of replicas may run; each keeps its own short memory of
what the booking service said, and they share one certificate.
"""

from carrel.admission.settings import WebhookSettings

__all__ = ["WebhookSettings", "webhook"]


def webhook(settings: WebhookSettings) -> None:
    """Answer kube-apiserver: whose pod is it, which tier has it, which cards may its containers see.

    Certificates are made, renewed and put into the webhook configuration by itself.
    Every option may also be given as an environment variable, as shown beside it; an option wins.

    Examples:

      carrel webhook --spawners system:serviceaccount:jhub:hub

      carrel webhook --when-full wait --strict

      carrel webhook --tls-folder /tls --api-url https://maia.example/maia-api/gpu-schedulability/
    """
    from carrel.admission.run import run

    run(settings)
