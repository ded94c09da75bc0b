"""The configuration: which is in force since when, whether what is given is refused; and what Carrel's pods were given
besides that means nothing to them."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Any

from carrel.admission.settings import WebhookSettings
from carrel.bookings.settings import BookingSettings
from carrel.cli.checks.components import ComponentPod, component_pods, newest
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.cluster.configuration_changes import Objects, read_objects, recorded_at
from carrel.cluster.configuration_record import APPLIED, Record
from carrel.configuration.moved import BY_VARIABLE, moved_options, moved_variables
from carrel.configuration.reading import Unusable
from carrel.configuration.schema import Configuration
from carrel.kubernetes.cluster import ClusterError
from carrel.lifecycle.settings import ControllerSettings
from carrel.node.settings import AgentSettings
from carrel.option_fields import variables_of
from carrel.parsing import Malformed
from carrel.parsing.time import instant, words
from carrel.scheduling.settings import ExtenderSettings

SETTINGS: Mapping[str, type[Any]] = {
    "webhook": WebhookSettings,
    "scheduler": ExtenderSettings,
    "controller": ControllerSettings,
    "booking": BookingSettings,
    "agent": AgentSettings,
}
PREFIX = "CARREL_"
ALSO_KNOWN = frozenset({"CARREL_NAMESPACE"})
SHOW = "carrel config show"


async def configuration_in_force(of: Installation) -> Configuration:
    """For the other checks. The defaults, if it cannot be read: `configuration` says why."""
    try:
        record = (await read_objects(of.client, of.namespace)).in_force()
        return record.configuration() if record is not None else Configuration()
    except (ClusterError, Unusable):
        return Configuration()


async def configuration(of: Installation) -> Sequence[Finding]:
    objects = await read_objects(of.client, of.namespace)
    pods = await component_pods(of)
    return [*_of_objects(of, objects), *(finding for pod in pods for finding in _moved(of, pod))]


def _of_objects(of: Installation, objects: Objects) -> Iterator[Finding]:
    record = objects.in_force()
    if record is None:
        yield fail(f"the namespace {of.namespace} has no ConfigMap carrel: no component can start", of.install)
        return
    try:
        zone = record.configuration().lab.zone
    except Unusable as unusable:
        yield fail(f"what is in force cannot be read: {unusable}", of.install)
        return
    if objects.record is None:
        logs = of.kubectl("logs deployment/carrel-controller")
        yield warn("no controller has recorded it: components that start use what is given", logs)
    elif record.refused.mistakes:
        since = f"what is given is refused since {recorded_at(record.refused.at, zone)}, and the last good one goes on"
        yield fail(f"{since}: {'; '.join(record.refused.mistakes)}", SHOW)
    elif not objects.is_settled:
        yield warn("what is given has changed, and no controller has decided about it", f"{SHOW}, once more in 10 s")
    else:
        yield ok(_age(of, record, zone))


def _age(of: Installation, record: Record, zone: tzinfo) -> str:
    if not record.history:
        return "recorded, with no history"
    last = record.history[-1]
    try:
        ago = words(of.now() - instant(last.at, APPLIED, "at"))
    except Malformed:
        return f"in force since {last.at}"
    why = f" ({last.reason})" if last.reason else ""
    return f"in force for {ago}, since {recorded_at(last.at, zone)}; last changed by {last.by}{why}"


def _moved(of: Installation, pod: ComponentPod) -> Iterator[Finding]:
    given = [f"{each.option} {each.where}" for each in moved_options(pod.main.args)]
    given += moved_variables(each.name for each in pod.main.env)
    for each in given:
        text = f"{pod.metadata.name} was given a setting that moved, and does not start again with it: {each}"
        yield fail(text, of.install + f", and leave it out of {pod.component}")


async def given_settings(of: Installation) -> Sequence[Finding]:
    pods = await component_pods(of)
    newest_of = {name: pod for name in SETTINGS if (pod := newest(pods, name)) is not None}
    return [*_unknown(newest_of)] or [ok("each component knows all that it was given")]


def _unknown(pods: Mapping[str, ComponentPod]) -> Iterator[Finding]:
    for component, pod in pods.items():
        known = ALSO_KNOWN | BY_VARIABLE.keys() | variables_of(SETTINGS[component])
        for variable in pod.main.env:
            if variable.name.startswith(PREFIX) and variable.name not in known:
                text = f"{component} has no setting {variable.name}, which it was given: it is ignored"
                yield warn(text, f"remove it from {component}.env, or correct its name: docs/reference/settings.md")
