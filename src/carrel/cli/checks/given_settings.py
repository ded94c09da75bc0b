"""Settings whose wrong value nobody notices: read from the environment of Carrel's own pods.

`docs/doctor.md` lists what else can be wrong silently, and which check finds it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from carrel import settings as shared
from carrel.admission.settings import WebhookSettings
from carrel.bookings.settings import BookingSettings
from carrel.cli.checks.components import FROM_SECRET, ComponentPod, component_pods, newest
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.lifecycle.settings import ControllerSettings
from carrel.node.settings import AgentSettings
from carrel.option_fields import options_of
from carrel.scheduling.settings import ExtenderSettings

SETTINGS: Mapping[str, type[Any]] = {
    "webhook": WebhookSettings,
    "scheduler": ExtenderSettings,
    "controller": ControllerSettings,
    "booking": BookingSettings,
    "agent": AgentSettings,
}
OWN = (shared.ClusterSettings, shared.ServingSettings, shared.PodSettings)
ALIKE = [each for each in vars(shared).values() if is_dataclass(each) and isinstance(each, type) and each not in OWN]
"""Groups of settings that all components which have them must have alike: those that are shared, but for addresses."""
HIDDEN = frozenset({"seal_key", "api_token"})
"""Settings that are secrets."""
MODE = "CARREL_MODE"
PREFIX = "CARREL_"
ALSO_KNOWN = frozenset({"CARREL_NAMESPACE"})


async def given_settings(of: Installation) -> Sequence[Finding]:
    pods = await component_pods(of)
    if not pods:
        return [ok("no pod of Carrel's chart has any")]  # `components` says that it is missing
    newest_of = {name: pod for name in SETTINGS if (pod := newest(pods, name)) is not None}
    found = [*_different(of, newest_of), *_unknown(of, newest_of)]
    return found or [ok("all components that must have a setting alike do, and each knows all that it was given")]


def environment_names(settings: type[Any]) -> dict[str, tuple[str, ...]]:
    """Return for each setting the variables that give it."""
    named = {name: option.envvar or () for name, option in options_of(settings).items()}
    return {name: (names,) if isinstance(names, str) else tuple(names) for name, names in named.items()}


def _different(of: Installation, pods: Mapping[str, ComponentPod]) -> Iterator[Finding]:
    for group in ALIKE:
        for setting, names in environment_names(group).items():
            values = {
                component: pod.given(*names) or _default(SETTINGS[component], setting)
                for component, pod in pods.items()
                if issubclass(SETTINGS[component], group)
            }
            if len(set(values.values())) > 1:
                said = ", ".join(f"{component} {_shown(setting, value)}" for component, value in values.items())
                yield fail(f"{names[0]} differs: {said}", of.install + ", and leave it out of env")
    modes = {name: pods[name].given(MODE) or "native" for name in ("webhook", "agent") if name in pods}
    if len({"native" if mode == "report-only" else mode for mode in modes.values()}) > 1:
        said = ", ".join(f"{component} {mode}" for component, mode in modes.items())
        yield fail(f"{MODE} differs: {said}; containers are told to see other GPUs than they get", of.install)


def _shown(setting: str, value: str) -> str:
    """Somebody may have written a secret into `env` itself: what is printed here ends in logs."""
    is_hidden = setting in HIDDEN and value and not value.startswith(FROM_SECRET)
    return "a value in its environment (not shown)" if is_hidden else value or "none"


def _default(settings: type[Any], setting: str) -> str:
    (field,) = [each for each in fields(settings) if each.name == setting]
    value = "" if field.default in (None, MISSING) else field.default
    said = value.value if isinstance(value, Enum) else value
    return str(said).lower() if isinstance(said, bool) else str(said)


def _unknown(of: Installation, pods: Mapping[str, ComponentPod]) -> Iterator[Finding]:
    for component, pod in pods.items():
        known = ALSO_KNOWN.union(*environment_names(SETTINGS[component]).values())
        for variable in pod.main.env:
            if variable.name.startswith(PREFIX) and variable.name not in known:
                text = f"{component} has no setting {variable.name}, which it was given: it is ignored"
                yield warn(text, f"remove it from {component}.env, or correct its name: docs/reference/settings.md")
