"""Carrel's own pods, as the chart makes them: what they were given, whether they answer, and by which clock.

They are asked through the API server (`pods/proxy`), so the same works in the cluster and from outside. A component
that runs in another way, as a service of the machine or in the demo, has no such pod and is not asked.

Their environment shows settings whose wrong value nobody notices. `docs/doctor.md` lists what else can be wrong
silently, and which check finds it.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from carrel import __version__
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.kubernetes.client import PodAnswer, PodPort
from carrel.kubernetes.cluster import ClusterError, Forbidden, Selection
from carrel.kubernetes.objects.kinds import Condition, Object, ObjectPart
from carrel.kubernetes.objects.resources import Resource
from carrel.kubernetes.server_clock import RESOLUTION, TOLERATED

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


REPORT_ONLY, YES = "CARREL_REPORT_ONLY", ("true", "1", "yes", "on")


def agent_mode(of: Installation, agent: ComponentPod | None) -> str:
    """native, coexist or report-only."""
    reports = agent is not None and (agent.given(REPORT_ONLY).lower() in YES or "--report-only" in agent.main.args)
    return "report-only" if reports else of.configuration.nodes.plugin.value


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


NEEDED = ("webhook", "scheduler", "controller")
DANGEROUS = timedelta(minutes=1)
"""Certificates and tokens that have just been made are not valid yet for a clock that is so late."""
VERSION = "app.kubernetes.io/version"


async def components(of: Installation) -> Sequence[Finding]:
    pods = await component_pods(of)
    if not pods:
        text = f"no pod of Carrel's chart is in the namespace {of.namespace}"
        return [fail(text, "carrel doctor --carrel-namespace NAMESPACE, or: " + of.install)]
    found: list[Finding] = []
    for component in (*NEEDED, *sorted({each.component for each in pods} - set(NEEDED))):
        found.append(await _component(of, component, [each for each in pods if each.component == component]))
    return [*found, *_versions(of, pods)]


async def _component(of: Installation, component: str, pods: Sequence[ComponentPod]) -> Finding:
    hop = f"component {component}"
    if not pods:
        return fail("no pod of it runs", of.kubectl("get deployments,events"), hop)
    unready = [each for each in pods if not each.is_ready]
    if unready:
        words = f"{len(pods) - len(unready)} of {len(pods)} pods are ready; {unready[0].metadata.name}: "
        state = fail if len(unready) == len(pods) else warn
        return state(words + unready[0].why_not_ready, of.kubectl(f"describe pod {unready[0].metadata.name}"), hop)
    for pod in pods:
        try:
            answer = await ask(of, pod, "/readyz")
        except Forbidden:
            return ok(f"{len(pods)} ready, as the kubelet says", hop)
        except ClusterError as error:
            text = f"the API server does not reach {pod.metadata.name}: {error.message}"
            return warn(text, of.kubectl("get networkpolicies"), hop)
        if answer.status != 200:
            return fail(
                f"{pod.metadata.name} is not ready: {answer.text}", of.kubectl(f"logs {pod.metadata.name}"), hop
            )
    return ok(f"{len(pods)} ready, and {'answers' if len(pods) == 1 else 'answer'}", hop)


def _versions(of: Installation, pods: Sequence[ComponentPod]) -> Iterator[Finding]:
    images = sorted({each.main.image for each in pods})
    if len(images) > 1:
        text = f"they run different images: {', '.join(images)}"
        yield warn(text, of.kubectl("rollout status deployment/carrel-controller"))
    installed = {each.metadata.labels.get(VERSION, "") for each in pods} - {"", __version__}
    if installed:
        text = f"Carrel {', '.join(sorted(installed))} is installed, and this is carrel {__version__}"
        yield warn(text, "use the program of the same version")


async def clocks(of: Installation) -> Sequence[Finding]:
    """Dates have whole seconds, and an answer takes time: only what cannot be explained so is a difference."""
    found = [_of_machine(of)]
    slow: list[Finding] = []
    asked = 0
    for pod in await component_pods(of):
        try:
            sent = of.now()
            answer = await ask(of, pod, "/healthz")
        except Forbidden as error:
            return [*found, warn(f"you may not ask Carrel's pods: {error.message}", "ask an admin to run it")]
        except ClusterError:
            continue  # said by `components`
        asked += 1
        if (late := behind(answer.date, sent, of.now())) is not None and abs(late) > TOLERATED:
            slow.append(_skewed(late, f"{pod.metadata.name} on {pod.spec.node_name}"))
    return [*found, *slow] if slow else [*found, *([ok(f"those of {asked} pods agree with it")] if asked else [])]


def _of_machine(of: Installation) -> Finding:
    skew = of.client.clock.skew
    return _skewed(-skew, "this machine") if skew else ok("this machine's agrees with the API server's")


def behind(date: str, sent: datetime, received: datetime) -> timedelta | None:
    """How far the clock of who answered is behind the API server's, at least in amount; None: it says no time."""
    try:
        at = parsedate_to_datetime(date)
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    late, early = sent - (at + RESOLUTION), at - received
    return late if late > timedelta() else -early if early > timedelta() else timedelta()


def _skewed(late: timedelta, whose: str) -> Finding:
    words = f"the clock of {whose} is {abs(late).total_seconds():,.0f} s {'behind' if late > timedelta() else 'ahead'}"
    text = f"{words}; Carrel decides by the API server's, but certificates, tokens and logs do not"
    return (fail if abs(late) > DANGEROUS else warn)(text, "timedatectl status, on that machine")
