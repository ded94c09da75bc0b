"""`carrel purge`: after Carrel was uninstalled, deletes what was left for the case that it comes back."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import typer

from carrel.cli.no_answer import cluster_errors
from carrel.cli.options import ClusterQuerySettings, DataFormat
from carrel.cli.output import aligned, is_confirmed, print_data, print_lines
from carrel.command_errors import CONFLICT, REFUSED, command_failed
from carrel.option_fields import option

if TYPE_CHECKING:
    from carrel.cli.purge_plan import Leftover, PurgePlan

NAMES_SHOWN = 3


@dataclass(frozen=True)
class PurgeSettings(ClusterQuerySettings):
    yes: bool = option(False, "Do not ask for confirmation.", "--yes", "-y")
    dry_run: bool = option(False, "Only show what would be deleted.", "--dry-run")


def purge(settings: PurgeSettings) -> None:
    """Delete what is left of Carrel after it was uninstalled: claims, bookings, Leases, keys. There is no way back.

    `helm uninstall` leaves what people would miss if Carrel comes back: the custom resource definitions with the
    GpuClaims, the database volume, the Leases of running pods, the keys. This command shows all of it, asks, and
    deletes it; also what agents wrote on the Nodes, and what acts in the cluster, if helm could not delete that.
    Running pods go on.

    It refuses while Carrel runs. If it is interrupted, run it again: it goes on with what is left. It needs the rights
    of an admin of the cluster. What the volume holds is deleted if its StorageClass says so. The namespace stays.

    Examples:

      carrel purge --carrel-namespace gpus --dry-run

      carrel purge --carrel-namespace gpus --yes
    """
    from carrel.node.withdrawal import AgentsStillRunning

    right = ("Not allowed to purge Carrel", "kubectl auth can-i delete customresourcedefinitions")
    try:
        with cluster_errors(settings, right, ("Not everything is deleted", _again(settings))):
            asyncio.run(_purge(settings))
    except AgentsStillRunning as still:
        why = f"agents of these nodes still run, and have written again what was removed: {still}"
        raise command_failed("Not everything is deleted", why, _again(settings), CONFLICT) from None


def _again(settings: PurgeSettings) -> str:
    return f"carrel purge --carrel-namespace {settings.carrel_namespace}"


async def _purge(settings: PurgeSettings) -> None:
    from carrel.cli.purge_plan import Purge
    from carrel.node.withdrawal import Withdrawal
    from carrel.process import connect

    client, is_table = connect(settings), settings.output is DataFormat.TABLE
    async with contextlib.aclosing(client):
        purging = Purge(client, settings.carrel_namespace, client.clock.now)
        if (there := await purging.still_installed()) is not None:
            hint = there.release.uninstall(there.namespace)
            raise command_failed("Carrel is not uninstalled", there.why, hint, REFUSED)
        if why := await purging.why_leading():
            why += "\nIf Carrel was uninstalled just now, it ends within a minute."
            raise command_failed("Carrel still runs", why, _again(settings), REFUSED)
        plan, withdrawal = await purging.plan(), Withdrawal(client)
        nodes = await withdrawal.written()
        if is_table:
            print_lines(*table(plan, sorted(nodes)))
        if settings.dry_run or not (plan.leftovers or nodes) or not _is_confirmed(settings):
            _print_fields(settings, plan.leftovers)
            return
        # First the Nodes: which numbers are ours is said by objects that go with their definition.
        await withdrawal.withdraw()
        for each in plan.leftovers:
            await purging.delete(each)
        _print_fields(settings, plan.leftovers)
        if is_table:
            typer.echo(f"Deleted. The namespace is yours: kubectl delete namespace {settings.carrel_namespace}")


def _is_confirmed(settings: PurgeSettings) -> bool:
    question = "Delete all of this? It cannot be brought back."
    return settings.yes or is_confirmed(question, "Nothing is deleted", f"{_again(settings)} --yes")


def _print_fields(settings: PurgeSettings, leftovers: "Sequence[Leftover]") -> None:
    if settings.output is not DataFormat.TABLE:
        fields = [
            {"kind": each.resource.kind, "namespace": each.namespace, "name": each.name, "holds": each.holds}
            for each in leftovers
        ]
        print_data(fields, settings.output)


def table(plan: "PurgePlan", nodes: Sequence[str]) -> list[str]:
    """A line for each kind of a namespace: there may be thousands of Leases."""
    rows = [["Node", "–", _some(nodes), "the numbers of GPUs and of their memory, not the Nodes"]] if nodes else []
    for (kind, namespace, holds), several in groupby(
        plan.leftovers, lambda each: (each.resource.kind, each.namespace, each.holds)
    ):
        rows.append([kind, namespace or "–", _some([each.name for each in several]), holds or "–"])
    lines = aligned([["KIND", "NAMESPACE", "NAME", "HOLDS"], *rows]) if rows else ["Nothing of Carrel is left."]
    stays = "It stays, because another product may have installed it; with its objects it goes by: kubectl delete crd"
    return [*lines, *(f"{name}: {stays} {name}" for name in plan.kept)]


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
