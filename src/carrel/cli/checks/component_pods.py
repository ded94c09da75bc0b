"""Carrel's own pods, as the chart makes them: what they were given, and what they answer.

They are asked through the API server (`pods/proxy`), so the same works in the cluster and from outside. A component
that runs in another way, as a service of the machine or in the demo, has no such pod and is not asked.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from carrel.cli.checks.finding import Installation
from carrel.kubernetes.client import PodAnswer, PodPort
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.kinds import Condition, Object, ObjectPart
from carrel.kubernetes.objects.resources import Resource

COMPONENT = "app.kubernetes.io/component"
OURS = "app.kubernetes.io/name=carrel"
PORTS = {"webhook": 8443, "scheduler": 39995, "controller": 39998, "booking": 39997, "agent": 39996}
"""Where each component answers probes, as the chart runs it."""
FROM_SECRET = "Secret "  # noqa: S105 # a word, not a password
"""How it is said that a variable comes from a Secret."""
KINDS = {"agent-report-only": "agent"}
"""Label of a component that runs in another mode there → the component."""


class FromSource(ObjectPart):
    """Where a variable comes from."""

    secret_key_ref: dict[str, str | bool] = msgspec.field(default_factory=dict)


class Variable(ObjectPart):
    name: str = ""
    value: str = ""
    value_from: FromSource = msgspec.field(default_factory=FromSource)

    @property
    def said(self) -> str:
        """Its value or, of a secret, where it is: no secret is read."""
        source = self.value_from.secret_key_ref
        return f"{FROM_SECRET}{source.get('name')}, key {source.get('key')}" if source else self.value


class ComponentContainer(ObjectPart):
    name: str = ""
    image: str = ""
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()


class ComponentSpec(ObjectPart):
    node_name: str = ""
    containers: tuple[ComponentContainer, ...] = ()


class WaitingState(ObjectPart):
    reason: str = ""
    message: str = ""


class ContainerState(ObjectPart):
    waiting: WaitingState = msgspec.field(default_factory=WaitingState)


class ContainerStatus(ObjectPart):
    name: str = ""
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class ComponentStatus(ObjectPart):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class ComponentPod(Object):
    spec: ComponentSpec = msgspec.field(default_factory=ComponentSpec)
    status: ComponentStatus = msgspec.field(default_factory=ComponentStatus)

    @property
    def component(self) -> str:
        label = self.metadata.labels.get(COMPONENT, "")
        return KINDS.get(label, label)

    @property
    def is_ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)

    @property
    def why_not_ready(self) -> str:
        reasons = [each.state.waiting for each in self.status.container_statuses if each.state.waiting.reason]
        words = [f"{each.reason}: {each.message}" if each.message else each.reason for each in reasons]
        words += [each.message for each in self.status.conditions if each.type == "PodScheduled" and each.message]
        return "; ".join(words) or f"it is {self.status.phase or 'new'} and not ready"

    @property
    def main(self) -> ComponentContainer:
        """Its container with Carrel's program: the first."""
        return self.spec.containers[0] if self.spec.containers else ComponentContainer()

    def given(self, *names: str) -> str:
        """The value of a setting by its environment variable, of which there may be several names; empty: not given."""
        return next((each.said for each in self.main.env if each.name in names), "")


COMPONENT_PODS = Resource(ComponentPod, "", "v1", "pods", "Pod")


async def component_pods(of: Installation, *components: str) -> Sequence[ComponentPod]:
    """Those that are not being deleted, of these components; of all, if none is named. Raises `ClusterError`."""
    found = (await of.client.list(COMPONENT_PODS, Selection(of.namespace, labels=OURS))).items
    known = [each for each in found if each.component in (components or PORTS) and not each.metadata.deletion_timestamp]
    return sorted(known, key=lambda each: (each.component, each.metadata.name))


def newest(pods: Iterable[ComponentPod], component: str) -> ComponentPod | None:
    """The one whose settings count: during an upgrade there are two kinds."""
    return max((each for each in pods if each.component == component), key=_age, default=None)


def _age(pod: ComponentPod) -> str:
    return pod.metadata.creation_timestamp


async def ask(of: Installation, pod: ComponentPod, path: str) -> PodAnswer:
    """Raises `ClusterError` if the API server does not reach it, or may not for us."""
    scheme = "https" if pod.component == "webhook" else ""
    return await of.client.ask_pod(PodPort(of.namespace, pod.metadata.name, PORTS[pod.component], scheme), path)


async def ask_metrics(of: Installation, pod: ComponentPod) -> "Measures":
    return Measures((await ask(of, pod, "/metrics")).text)


class Measures:
    """What a component's metrics say."""

    def __init__(self, text: str) -> None:
        self._text = text

    def total(self, name: str) -> float | None:
        """The sum over all labels; None: the component has no such metric."""
        values = [value for _, value in self._samples(name)]
        return sum(values) if values else None

    def label(self, name: str, label: str) -> str:
        return next((labels.get(label, "") for labels, value in self._samples(name) if value), "")

    def _samples(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        try:
            for family in text_string_to_metric_families(self._text):
                yield from ((sample.labels, sample.value) for sample in family.samples if sample.name == name)
        except ValueError:
            return  # something else answers there
