"""A pod that asks for a GPU, as a dry run: the API server calls the webhook, and nothing is created."""

from collections.abc import Sequence

from carrel.cli.checks.finding import Finding, Installation, fail, ok
from carrel.dialects import nvidia
from carrel.dialects.carrel import PREFIXES
from carrel.kubernetes.cluster import ClusterError, Forbidden
from carrel.kubernetes.objects.resources import PODS

REASONS = (
    ("x509", "it does not trust the webhook's certificate", "rollout restart deployment/carrel-webhook"),
    ("no endpoints available", "no webhook is ready", "get pods --selector app.kubernetes.io/component=webhook"),
    ('service "carrel-webhook" not found', "the webhook's Service is missing", "get services"),
    ("connection refused", "nobody listens there", "get endpointslices"),
    (
        "deadline exceeded",
        "no answer in time: does a firewall or a NetworkPolicy keep the API server away?",
        "get networkpolicies",
    ),
    ("no route to host", "the API server does not reach the pods' network", "get endpointslices"),
)
"""A part of the API server's message → what it means, and what to look at."""


async def admission(of: Installation) -> Sequence[Finding]:
    container = {"name": "main", "image": "none", "resources": {"limits": {nvidia.GPU: "1"}}}
    pod = {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {"generateName": "carrel-doctor-"},
        "spec": {"containers": [container]},
    }
    try:
        made = await of.client.create(PODS, pod, of.namespace, dry_run=True)
    except ClusterError as error:
        if "denied the request" in error.message:  # by a rule of the webhook, which therefore answers
            return [ok(f"the webhook answers: {error.message}")]
        if isinstance(error, Forbidden):
            raise
        return [_refused(of, error)]
    # In a full cluster it may have become a pod without a GPU, which another scheduler places.
    if not any(key.startswith(PREFIXES) for key in made["metadata"].get("annotations", {})):
        return [fail("a GPU pod is created as it is: the API server does not ask the webhook", of.install)]
    return [ok("the API server asks the webhook about GPU pods over TLS, and it answers")]


def _refused(of: Installation, error: ClusterError) -> Finding:
    for part, meaning, words in REASONS:
        if part in error.message:
            return fail(f"the API server cannot ask the webhook: {meaning} ({error.message})", of.kubectl(words))
    look = of.kubectl("get pods,endpointslices") + "; " + of.kubectl("logs deployment/carrel-webhook")
    return fail(f"a GPU pod is refused: {error.message}", look)
