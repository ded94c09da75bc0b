"""`carrel release`: frees GPUs of a node that does not answer, when an admin knows that nothing runs there."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from carrel.cli.options import ClusterQuerySettings, DataFormat
from carrel.cli.output import aligned, is_confirmed, print_data
from carrel.command_errors import FORBIDDEN, NOT_FOUND, REFUSED, UNAVAILABLE, USAGE, command_failed
from carrel.option_fields import argument, option
from carrel.process import cluster_access

if TYPE_CHECKING:
    from carrel.cluster.record.release import HeldGpu


@dataclass(frozen=True)
class ReleaseSettings(ClusterQuerySettings):
    gpu: str = argument("", "A node, or one GPU of it as NODE/NUMBER.", show_default=False)
    yes: bool = option(False, "Do not ask for confirmation.", "--yes", "-y")
    force: bool = option(False, "Also if the node answers.", "--force")
    """Then its pods may be running, and others would get the same GPUs."""
    dry_run: bool = option(False, "Only show what would be freed.", "--dry-run")


def release(settings: ReleaseSettings) -> None:
    """Free the GPUs of a node that does not answer, after you made sure that nothing runs there: it is switched off.

    A GPU stays set aside while nobody can say whether its pod has ended. This command deletes the pods that hold GPUs
    of the node, without waiting for the node, and frees the GPUs. It refuses if the node answers. An Event on the Node
    says who did it.

    It needs the rights to delete pods, to update and delete Leases in Carrel's namespace, and to create Events.

    Examples:

      carrel release dgx-2 --dry-run

      carrel release dgx-2/0 --yes
    """
    from carrel.cli.cluster_reader import read_cluster
    from carrel.cluster.record.release import GpuRelease

    node, index = _place(settings.gpu)
    access = cluster_access(settings)
    carrel = read_cluster(settings, access)
    plan = GpuRelease(carrel)
    held, why_away = plan.plan(node, index), plan.why_away(node)
    if not held:
        raise command_failed(
            f"Nothing to release on {settings.gpu}", "No pod holds a GPU there.", "carrel inspect -d", NOT_FOUND
        )
    is_table = settings.output is DataFormat.TABLE
    typer.echo("\n".join(table(node, held)), err=not is_table)
    if why_away:
        typer.echo(f"{node} does not answer: {why_away}.", err=not is_table)
    if settings.dry_run:
        return
    if not why_away and not settings.force:
        raise _not_away(settings.gpu, node)
    question = "Is it certain that none of these pods runs any more? Delete them, and free their GPUs?"
    if not settings.yes and not is_confirmed(question, "Not released", f"carrel release {settings.gpu} --yes"):
        return
    held = _release(settings, node, held)
    if not is_table:
        print_data([_fields(node, each) for each in held], settings.output)
    else:
        typer.echo(f"Released {len(held)} share{'s' * (len(held) != 1)} of GPUs on {node}.")


def _release(settings: ReleaseSettings, node: str, held: "Sequence[HeldGpu]") -> "Sequence[HeldGpu]":
    from carrel.kubernetes.cluster import ClusterError, Forbidden

    try:
        return asyncio.run(_write(settings, node, held))
    except Forbidden as error:
        hint = f"kubectl auth can-i update leases -n {settings.carrel_namespace}"
        raise command_failed("Not allowed to release GPUs", str(error), hint, FORBIDDEN) from None
    except ClusterError as error:
        why = f"{error}; do it again"
        raise command_failed("Not everything is released", why, f"carrel release {settings.gpu}", UNAVAILABLE) from None


async def _write(settings: ReleaseSettings, node: str, shown: "Sequence[HeldGpu]") -> "Sequence[HeldGpu]":
    """What was released. The cluster is read again: it may have changed while somebody thought about the question."""
    from carrel.cli.cluster_reader import reading_cluster
    from carrel.cluster.record.release import GpuRelease

    async with reading_cluster(settings, cluster_access(settings)) as carrel:
        release = GpuRelease(carrel)
        if not settings.force and not release.why_away(node):
            raise _not_away(settings.gpu, node)
        held = release.still_held(node, shown)
        if held:
            await release.release(node, held, carrel.options.now())
        return held


def _not_away(gpu: str, node: str) -> typer.Exit:
    why = "It answers, so its pods free their GPUs when they have ended. Delete the pods."
    return command_failed(f"{node} is not away", why, f"carrel release {gpu} --force", REFUSED)


def _place(text: str) -> tuple[str, int | None]:
    node, slash, number = text.partition("/")
    if not node or (slash and not number.isdecimal()):
        why = "Write the node, or the node and the number of a GPU."
        raise command_failed(f"{text!r} is not a GPU", why, "carrel release dgx-2/0", USAGE)
    return node, int(number) if slash else None


def table(node: str, held: "Sequence[HeldGpu]") -> list[str]:
    rows = [[node, str(each.index), str(each.holder), each.pod] for each in held]
    return aligned([["NODE", "GPU", "POD", "STATE"], *rows])


def _fields(node: str, each: "HeldGpu") -> dict[str, object]:
    return {"node": node, "gpu": each.index, "pod": each.holder.full_name, "uid": each.holder.uid, "state": each.pod}
