"""Whether each component answers, and by which clock."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

from carrel import __version__
from carrel.cli.checks.component_pods import ComponentPod, ask, component_pods
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.kubernetes.cluster import ClusterError, Forbidden
from carrel.kubernetes.server_clock import RESOLUTION, TOLERATED

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
