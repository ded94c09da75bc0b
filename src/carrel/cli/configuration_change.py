"""`carrel config set` and `reset`: what people change of the booking rules and tiers while the cluster runs."""

import asyncio
import getpass
from dataclasses import dataclass
from typing import TYPE_CHECKING

from carrel.cli.configuration import complete_key, known_key, with_cluster
from carrel.cli.output import print_lines
from carrel.command_errors import CONFLICT, REFUSED, UNAVAILABLE, USAGE, command_failed
from carrel.option_fields import argument, option
from carrel.settings import ContextSettings

if TYPE_CHECKING:
    from carrel.cluster.configuration_changes import Objects
    from carrel.cluster.configuration_record import RefusedChange
    from carrel.kubernetes.client import Client

WAIT_S = 15.0
"""For the controller to decide. It follows the object, and looks again every five seconds."""
OLD_REFUSAL_S = 7.0
"""A refusal that was there before may be about something else: so long it is waited for another."""
POLL_S = 0.25
RECORDED = "the controller has recorded it, and all components follow within seconds"


def complete_changeable(incomplete: str) -> list[str]:
    from carrel.configuration.reading import may_people_change

    return [path for path in complete_key(incomplete) if may_people_change(path)]


@dataclass(frozen=True)
class ChangeSettings(ContextSettings):
    key: str = argument(  # type: ignore[assignment] # required
        ..., "A field of bookings.rules or tiers.", show_default=False, autocompletion=complete_changeable
    )


@dataclass(frozen=True)
class SetSettings(ChangeSettings):
    value: str = argument(..., "Its new value, as in the file: 14d, 4, true, fair.", show_default=False)  # type: ignore[assignment] # required
    reason: str = option("", "Why; everybody who may read the configuration sees it.")
    """Required: somebody will ask."""


def set_field(settings: SetSettings) -> None:
    """Change a booking rule or a field of the tiers, which all components follow within seconds.

    All other fields belong to whoever installs Carrel: they are helm values. What you set wins over the helm value, and
    `helm upgrade` leaves it alone, until `carrel config reset`. If somebody else changes the configuration at the same
    time, nothing is written, and you see what they changed.

    It needs the right to update the ConfigMap carrel-changes in Carrel's namespace.

    Examples:

      carrel config set bookings.rules.maxDuration 7d --reason "the deadline of NeurIPS"

      carrel config set tiers.victims random --reason "as MAIA did"
    """
    from carrel.configuration.reading import typed

    if not settings.reason.strip():
        advice = f'carrel config set {settings.key} {settings.value} --reason "…"'
        raise command_failed("No reason was given", "Others want to know why a rule changed.", advice, USAGE)
    value = typed(settings.value)
    _change(settings, settings.value if value is None else value, settings.reason.strip())


@dataclass(frozen=True)
class ResetSettings(ChangeSettings):
    reason: str = option("", "Why; everybody who may read the configuration sees it.")


def reset_field(settings: ResetSettings) -> None:
    """Take back what was changed by `carrel config set` or on the admin page: the field is what the installation says.

    Examples:

      carrel config reset bookings.rules.maxDuration
    """
    _change(settings, None, settings.reason.strip())


def _change(settings: ChangeSettings, value: object, reason: str) -> None:
    """None takes back what people changed, also of a field that only another version of Carrel knew."""
    from carrel.configuration.reading import may_people_change

    if value is not None:
        known_key(settings.key)

    async def write(client: "Client") -> str:
        from carrel.cluster.configuration_changes import read_objects

        objects = await read_objects(client, settings.carrel_namespace)
        by_people = _by_people(objects, settings)
        if settings.key in by_people:
            if by_people[settings.key] == value:
                return f"{settings.key} is so already"
        elif not may_people_change(known_key(settings.key).path):
            raise await _not_theirs(client, settings, value)
        elif value is None:
            return f"Nobody has changed {settings.key}: there is nothing to take back"
        return await _write(client, settings, objects, value, reason)

    print_lines(with_cluster(settings, write))


def _by_people(objects: "Objects", settings: ChangeSettings) -> dict[str, object]:
    """Path → value of what people changed. The command ends if it cannot be read."""
    from carrel.configuration.reading import Unusable, content_of, leaves

    try:
        return dict(leaves(content_of(objects.changes_text)))
    except Unusable as unusable:
        hint = f"kubectl --namespace {settings.carrel_namespace} edit configmap carrel-changes"
        what = "What people changed cannot be read"
        raise command_failed(what, "\n".join(unusable.mistakes), hint, REFUSED) from None


async def _not_theirs(client: "Client", settings: ChangeSettings, value: object) -> Exception:
    from carrel.cli.configuration_text import value_text
    from carrel.cli.helm_release import marked_release
    from carrel.configuration.reading import PEOPLE_MAY_CHANGE

    release = await marked_release(client)
    said = value_text(value) if value is not None else "null"
    why = f"Only {' and '.join(PEOPLE_MAY_CHANGE)} can be changed here; the installation says all others."
    advice = release.with_values(settings.carrel_namespace, f"config.{settings.key}={said}")
    return command_failed(f"{settings.key} cannot be changed by this command", why, advice, REFUSED)


async def _write(client: "Client", settings: ChangeSettings, objects: "Objects", value: object, reason: str) -> str:
    from carrel.cluster.configuration_changes import ChangeNote, changed_text, read_objects, why_not, write_changes
    from carrel.kubernetes.cluster import AlreadyExists, Conflict, NotFound

    namespace = settings.carrel_namespace
    text = changed_text(objects.changes_text, {settings.key: value})
    # What is taken back must not wait for what else is wrong.
    left = why_not(objects, objects.changes_text) if value is None else []
    if mistakes := [each for each in why_not(objects, text) if each not in left]:
        advice = f"carrel config show {settings.key}"
        raise command_failed("Nothing is changed: it could not be used", "\n".join(mistakes), advice, USAGE)
    note = ChangeNote(await whoami(client), reason)
    try:
        await write_changes(client, namespace, objects.people, text, note)
    except (Conflict, AlreadyExists, NotFound):
        raise _changed_meanwhile(settings, objects, await read_objects(client, namespace)) from None
    return await _wait_decided(client, settings, objects.record.refused if objects.record else None)


def _changed_meanwhile(settings: ChangeSettings, old: "Objects", new: "Objects") -> Exception:
    from carrel.cli.configuration_text import value_text
    from carrel.dialects.carrel import CHANGE_REASON, CHANGED_BY

    before, after = _by_people(old, settings), _by_people(new, settings)
    notes = new.people.metadata.annotations if new.people is not None else {}
    who, why = notes.get(CHANGED_BY, "Somebody"), notes.get(CHANGE_REASON, "")
    said = [
        f"{path}: {value_text(before[path]) if path in before else 'not set'} →"
        f" {value_text(after[path]) if path in after else 'not set'}"
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]
    told = f"{who} changed it at the same time{f' ({why})' if why else ''}:"
    text = "\n".join([told, *(said or ["the same values, written again"])])
    return command_failed("Nothing of yours is written", text, f"carrel config show {settings.key}", CONFLICT)


async def _wait_decided(client: "Client", settings: ChangeSettings, old: "RefusedChange | None") -> str:
    """Until the controller has recorded the change, or refused it. The command ends if it has done neither."""
    from carrel.cli.configuration_text import value_text
    from carrel.cluster.configuration_changes import read_objects
    from carrel.configuration.reading import every_field

    loop = asyncio.get_running_loop()
    began = loop.time()
    while (passed := loop.time() - began) < WAIT_S:
        objects = await read_objects(client, settings.carrel_namespace)
        record = objects.record
        if record is not None:
            refused = record.refused
            if not refused.mistakes and objects.is_settled:
                values = {leaf.path: value_text(leaf.value) for leaf in every_field(record.configuration())}
                return f"{settings.key} is {values.get(settings.key, 'gone')} now: {RECORDED}"
            if refused.mistakes and (refused != old or passed > OLD_REFUSAL_S):
                what = "It is written, but the controller refuses it; the last good configuration goes on"
                raise command_failed(what, "\n".join(refused.mistakes), "carrel config show", REFUSED)
        await asyncio.sleep(POLL_S)
    why = f"No controller has recorded it within {WAIT_S:.0f} s. It takes effect when one leads."
    raise command_failed("It is written, but not in force yet", why, "carrel doctor", UNAVAILABLE)


async def whoami(client: "Client") -> str:
    """Return our name as the API server knows it; else the user of this machine."""
    from carrel.kubernetes.cluster import ClusterError
    from carrel.kubernetes.objects.resources import SELF_SUBJECT_REVIEWS

    review = {"apiVersion": SELF_SUBJECT_REVIEWS.api_version, "kind": SELF_SUBJECT_REVIEWS.kind, "metadata": {}}
    try:
        answer = await client.create(SELF_SUBJECT_REVIEWS, review)
        name = str(answer.get("status", {}).get("userInfo", {}).get("username", ""))
    except ClusterError:
        name = ""
    return name if name and name != "system:anonymous" else getpass.getuser()
