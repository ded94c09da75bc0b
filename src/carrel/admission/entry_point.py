"""`carrel webhook`: decides about GPU pods before they are created.

It changes nothing but the review that it answers. Any number of replicas may run; each decides from what it watches,
and all share one certificate.
"""

from carrel.admission.settings import WebhookSettings

__all__ = ["WebhookSettings", "webhook"]


def webhook(settings: WebhookSettings) -> None:
    """Answer kube-apiserver: whose pod it is, which tier it has, which GPUs its containers may see.

    It makes and renews its certificates, and writes their authority into the webhook configuration.
    Every option may also be given as an environment variable, as shown beside it; an option wins.

    Examples:

      CARREL_SEAL_KEY=none carrel webhook --config carrel.yaml

      carrel webhook --tls-folder /tls --api-url https://maia.example/maia-api/gpu-schedulability/
    """
    from carrel.admission.run import run

    run(settings)
