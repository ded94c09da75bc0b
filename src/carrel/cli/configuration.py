"""`carrel config show`, `check`, `diff` and `history`: they read the configuration and change nothing."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from carrel.cli.no_answer import cluster_errors
from carrel.cli.options import ClusterQuerySettings, DataFormat
from carrel.cli.output import aligned, print_data, print_lines
from carrel.command_errors import NOT_FOUND, USAGE, command_failed
from carrel.option_fields import argument, option
from carrel.settings import ContextSettings

if TYPE_CHECKING:
    from carrel.cluster.configuration_changes import Objects
    from carrel.cluster.configuration_record import Record
    from carrel.configuration.reading import Leaf
    from carrel.configuration.schema import Configuration
    from carrel.kubernetes.client import Client

T = TypeVar("T")

STDIN = "-"


def complete_key(incomplete: str) -> list[str]:
    """For the shell: the fields that begin so."""
    from carrel.configuration.reading import every_field
    from carrel.configuration.schema import Configuration

    return [leaf.path for leaf in every_field(Configuration()) if leaf.path.startswith(incomplete)]


@dataclass(frozen=True)
class ConfigShowSettings(ContextSettings):
    key: str = argument(
        "", "A field or a section, such as tiers.victims or bookings.rules; default: all.", autocompletion=complete_key
    )
    all: bool = option(False, "Also the fields that have their default.", "--all", "-a")
    config: Path | None = option(None, "A file, instead of the cluster.")
    defaults: bool = option(False, "Print a file with all fields, their meaning and their defaults.", "--defaults")
    output: DataFormat = option(DataFormat.TABLE, "Output format.", "--output", "-o")
    """JSON and YAML have the fields as in the file: what is printed can be edited and checked."""


def show_configuration(settings: ConfigShowSettings) -> None:
    """Print the configuration that is in force: each field that differs from its default, and who decided it.

    With a field, it says what the field means, why it is so, and how it is changed. If what is given in the cluster is
    refused, it says so first, with everything that is wrong.

    Examples:

      carrel config show

      carrel config show tiers.victims

      carrel config show --all -o yaml

      carrel config show --defaults > carrel.yaml
    """
    from carrel.cli.configuration_text import defaults_file, one_field, refused_lines, table
    from carrel.cluster.configuration_changes import sources
    from carrel.cluster.configuration_record import Record
    from carrel.configuration.reading import content_with, every_field

    if settings.defaults:
        print_lines(*defaults_file().splitlines())
        return
    if settings.config is not None:
        text = text_of(str(settings.config))
        record = Record(text)
        configuration = usable(text, "", str(settings.config))
    else:
        record = _in_force(settings)
        configuration = _readable(record)
    leaves = list(every_field(configuration))
    chosen = _chosen(settings.key, leaves)
    shown = [leaf for leaf in chosen if settings.all or settings.key or leaf.value != leaf.default]
    refused = refused_lines(record, configuration.lab.zone)
    if settings.output is not DataFormat.TABLE:
        if refused:
            print_lines(*refused, err=True)
        print_data(content_with(shown), settings.output)
        return
    source = sources(record)
    if settings.key == chosen[0].path:
        print_lines(*refused, *one_field(chosen[0], source[settings.key]))
        return
    print_lines(*refused, *(table(shown, source) if shown else ["All fields have their defaults."]))
    if shown and (hidden := len(chosen) - len(shown)):
        print_lines("", f"{hidden} more have their defaults: carrel config show --all")


def _chosen(key: str, leaves: "list[Leaf]") -> "list[Leaf]":
    """The command ends if there is no such field."""
    from carrel.configuration.reading import nearest

    found = [leaf for leaf in leaves if not key or leaf.path == key or leaf.path.startswith(f"{key}.")]
    if not found:
        near = nearest(key, [leaf.path for leaf in leaves])
        why = f"Did you mean {near}?" if near else "Fields are written as tiers.victims, sections as bookings.rules."
        raise command_failed(f"{key!r} is no field", why, f"carrel config show {near or '--all'}", USAGE)
    return found


def known_key(key: str) -> "Leaf":
    """The field of this name, with its default. The command ends if there is none."""
    from carrel.configuration.reading import every_field
    from carrel.configuration.schema import Configuration

    found = _chosen(key, list(every_field(Configuration())))
    if found[0].path != key:
        why = f"{key} is a section; its fields are {', '.join(leaf.path for leaf in found)}."
        raise command_failed(f"{key!r} is no field", why, f"carrel config show {key}", USAGE)
    return found[0]


# --- check and diff --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckSettings(ContextSettings):
    file: str = argument(..., "The file; - reads stdin.", show_default=False)  # type: ignore[assignment] # required
    against_cluster: bool = option(
        False, "Also say what would change in the cluster, and what it would refuse now.", "--against-cluster"
    )
    """Without it, no cluster is needed: a check before a commit has none."""


def check_configuration(settings: CheckSettings) -> None:
    """Check a file: it says everything that is wrong in it, and ends with 2 if there is something.

    Examples:

      carrel config check carrel.yaml

      helm get values carrel -o yaml | yq .config | carrel config check -

      carrel config check carrel.yaml --against-cluster
    """
    from carrel.configuration.reading import every_field

    text = text_of(settings.file)
    configuration = usable(text, "", settings.file)
    leaves = list(every_field(configuration))
    different = sum(leaf.value != leaf.default for leaf in leaves)
    print_lines(f"{_name(settings.file)} is good: {different} of {len(leaves)} fields differ from the defaults.")
    if settings.against_cluster:
        _print_difference(settings, text)


@dataclass(frozen=True)
class DiffSettings(ContextSettings):
    file: str = argument(..., "The file; - reads stdin.", show_default=False)  # type: ignore[assignment] # required


def diff_configuration(settings: DiffSettings) -> None:
    """Say what would change if a file were given to the cluster, and when each change would take effect.

    What people have changed by `carrel config set` or on the admin page stays, and is said.

    Examples:

      carrel config diff carrel.yaml

      carrel config show -o yaml | sed 's/14d/7d/' | carrel config diff -
    """
    text = text_of(settings.file)
    usable(text, "", settings.file)
    _print_difference(settings, text)


def _print_difference(settings: ContextSettings, text: str) -> None:
    from carrel.cli.configuration_text import changes_table, refused_lines, value_text
    from carrel.configuration.current import changes
    from carrel.configuration.fields import Change
    from carrel.configuration.reading import content_of, leaves

    async def ask(client: "Client") -> "tuple[Objects, int]":
        from carrel.cluster.configuration_changes import read_objects

        return await read_objects(client, settings.carrel_namespace), await _holders(client, settings.carrel_namespace)

    objects, holders = with_cluster(settings, ask)
    record = existing(objects, settings)
    new = usable(text, objects.changes_text, "what the cluster would have")
    now = _readable(record)
    found = list(changes(now, new))
    print_lines(*refused_lines(record, now.lab.zone), *(changes_table(found) if found else ["Nothing would change."]))
    in_file, by_people = dict(leaves(content_of(text))), dict(leaves(content_of(objects.changes_text)))
    for path in sorted(in_file.keys() & by_people.keys()):
        kept = f"{path} stays {value_text(by_people[path])}, which people have set: carrel config reset {path}"
        print_lines(f"  {kept}")
    late = [each.path for each in found if each.change is Change.WHEN_FREE]
    if late and holders:
        who = f"{holders} pods hold" if holders != 1 else "1 pod holds"
        print_lines(
            f"✗ All of it would be refused now, because of {', '.join(late)}: {who} GPUs. It would take effect by"
            " itself when nobody holds one."
        )


async def _holders(client: "Client", namespace: str) -> int:
    """How many pods and claims hold GPUs."""
    from carrel.dialects.gpu_lease import read_lease
    from carrel.kubernetes.cluster import Selection
    from carrel.kubernetes.objects.resources import LEASES
    from carrel.parsing import Malformed

    uids = set[str]()
    for lease in (await client.list(LEASES, Selection(namespace))).items:
        with contextlib.suppress(Malformed):
            record = read_lease(lease)
            uids |= {share.holder.uid for share in record.shares} if record is not None else set()
    return len(uids)


# --- history ---------------------------------------------------------------------------------------------------------


def configuration_history(settings: ClusterQuerySettings) -> None:
    """Say what was changed of the configuration, when, by whom and why; the newest change comes first.

    Examples:

      carrel config history

      carrel config history -o json
    """
    from carrel.cluster.configuration_changes import recorded_at

    record = _in_force(settings)
    history = list(reversed(record.history))
    if settings.output is not DataFormat.TABLE:
        fields = [{"at": each.at, "by": each.by, "reason": each.reason, "changes": each.changes} for each in history]
        print_data(fields, settings.output)
    elif not history:
        print_lines("Nothing is recorded yet: no controller has led.")
    else:
        zone = _readable(record).lab.zone
        rows = [[recorded_at(each.at, zone), each.by, each.reason or "–", "; ".join(each.changes)] for each in history]
        print_lines(*aligned([["WHEN", "WHO", "WHY", "WHAT"], *rows]))


# --- files and the cluster -------------------------------------------------------------------------------------------


def _name(file: str) -> str:
    return "What was read from stdin" if file == STDIN else file


def text_of(file: str) -> str:
    """The command ends if the file cannot be read."""
    try:
        return sys.stdin.read() if file == STDIN else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise command_failed(f"{_name(file)} cannot be read", why, "carrel config show --defaults", USAGE) from None


def usable(text: str, changes: str, name: str) -> "Configuration":
    """The command ends with everything that is wrong."""
    from carrel.configuration.reading import Unusable, read

    try:
        return read(text, changes)
    except Unusable as unusable:
        what = f"{_name(name)} cannot be used: {len(unusable.mistakes)} mistake{'s' * (len(unusable.mistakes) != 1)}"
        raise command_failed(what, "\n".join(unusable.mistakes), "carrel config show --defaults", USAGE) from None


def _readable(record: "Record") -> "Configuration":
    return usable(record.text, record.changes, "The configuration of the cluster")


def _in_force(settings: ContextSettings) -> "Record":
    from carrel.cluster.configuration_changes import read_objects

    return existing(with_cluster(settings, lambda client: read_objects(client, settings.carrel_namespace)), settings)


def existing(objects: "Objects", settings: ContextSettings) -> "Record":
    """The configuration in force. The command ends if there is none."""
    record = objects.in_force()
    if record is None:
        why = f"The namespace {settings.carrel_namespace} has no ConfigMap carrel or carrel-applied."
        why += " Another one is named by --carrel-namespace; carrel config show --defaults needs no cluster."
        advice = "kubectl get clusterrole carrel-installation -o yaml"
        raise command_failed("There is no configuration", why, advice, NOT_FOUND)
    return record


def with_cluster(settings: ContextSettings, ask: "Callable[[Client], Coroutine[Any, Any, T]]") -> T:
    """What the API server answers. The command ends if it does not."""
    from carrel.process import connect

    async def asked() -> T:
        async with contextlib.aclosing(connect(settings)) as client:
            return await ask(client)

    right = ("Not allowed", f"kubectl auth can-i list configmaps/carrel-applied -n {settings.carrel_namespace}")
    with cluster_errors(settings, right, ("No answer from the cluster", "kubectl cluster-info")):
        return asyncio.run(asked())
