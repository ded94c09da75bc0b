"""How GPUs come into containers: RuntimeClass, and who is told to see none."""

from collections.abc import Sequence

from carrel.cli.checks.components import ComponentPod, component_pods, newest
from carrel.cli.checks.definitions import webhook_entries
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.cluster.runtime_class import AUTO, NONE
from carrel.dialects import nvidia
from carrel.kubernetes.objects.resources import RUNTIME_CLASSES

SIMULATE, RUNTIME_CLASS, HIDE_FROM = "CARREL_SIMULATE", "CARREL_RUNTIME_CLASS", "CARREL_HIDE_GPUS_FROM"
ALL_PODS = "all-pods"
CONDITION = "may-see-gpus"
"""As in `manifests/webhooks.yaml`."""


def is_simulated(pods: Sequence[ComponentPod]) -> bool:
    agent = newest(pods, "agent")
    return agent is not None and bool(agent.given(SIMULATE))


async def runtime_class(of: Installation) -> Sequence[Finding]:
    pods = await component_pods(of)
    webhook = newest(pods, "webhook")
    setting = (webhook.given(RUNTIME_CLASS) if webhook else "") or AUTO
    name = nvidia.RUNTIME_CLASS if setting == AUTO else "" if setting == NONE else setting
    is_there = bool(name) and await of.find(RUNTIME_CLASSES, name) is not None
    if setting not in (AUTO, NONE) and not is_there:
        text = f"there is no RuntimeClass {name}: the API server refuses every GPU pod"
        return [fail(text, of.with_values("runtimeClass=auto"))]
    if (webhook.given(HIDE_FROM) if webhook else "") == ALL_PODS and await _asks_about_few(of):
        text = "hideGpusFrom is all-pods, but the API server asks the webhook only about pods that may see a GPU"
        return [fail(text, of.install)]
    if is_there:
        return [ok(f"GPU pods that name none get {name}")]
    if is_simulated(pods):
        return [ok("GPU pods get none, and need none: GPUs are simulated")]
    hidden = (webhook.given(HIDE_FROM) if webhook else "") or "nvidia-pods"
    if hidden != ALL_PODS:
        text = (
            f"GPU pods get none, so NVIDIA's runtime must be the default one of the nodes; then an image alone may use "
            f"any GPU, because hideGpusFrom is {hidden}"
        )
        return [warn(text, of.with_values("hideGpusFrom=all-pods"))]
    return [ok("GPU pods get none: NVIDIA's runtime must be the default one of the nodes; --probe shows whether it is")]


async def _asks_about_few(of: Installation) -> bool:
    """Whether the webhook's configuration leaves out pods that ask for no GPU, and look as if they could see none."""
    entries = await webhook_entries(of) or {}  # that there are none is said by `webhook`
    conditions = (each for entry in entries.values() for each in entry.get("matchConditions") or ())
    return any(each.get("name") == CONDITION for each in conditions)
