"""`carrel adopt` and `release`: what an admin changes of the record.

`adopt` records pods that have GPUs without a Lease, because they were there before Carrel. `release` frees GPUs of a
node that does not answer, when an admin knows that nothing runs there.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from carrel.cli.no_answer import cluster_errors
from carrel.cli.options import ClusterQuerySettings, DataFormat
from carrel.cli.output import aligned, is_confirmed, print_data, print_lines
from carrel.command_errors import NOT_FOUND, REFUSED, UNAVAILABLE, USAGE, command_failed
from carrel.ids import NodeName
from carrel.option_fields import argument, option

if TYPE_CHECKING:
    from carrel.cluster.record.adoption import AdoptedPod
    from carrel.cluster.record.release import HeldGpu
    from carrel.kubernetes.config import Access


@dataclass(frozen=True)
class AdoptSettings(ClusterQuerySettings):
    dry_run: bool = option(False, "Only show what would be recorded.", "--dry-run")
    """Without a record these pods hold their GPUs too, so there is no hurry."""


def adopt(settings: AdoptSettings) -> None:
    """Record the pods that have GPUs without a Lease: those that ran before Carrel, or that another scheduler placed.

    Such pods hold their GPUs in any case: Carrel gives nobody else what they have. Their record is a Lease, as for all
    other pods. Doing it again changes nothing. It needs the right to write Leases in Carrel's namespace.

    Examples:

      carrel adopt --dry-run

      carrel adopt
    """
    from carrel.cluster.record.adoption import Outcome
    from carrel.settings import cluster_access

    right = ("Not allowed to look for pods", f"kubectl auth can-i list leases -n {settings.carrel_namespace}")
    with cluster_errors(settings, right, ("Not all pods are recorded", "carrel adopt --dry-run")):
        adopted = asyncio.run(_adopt(settings, cluster_access(settings)))
    if settings.output is not DataFormat.TABLE:
        print_data([_adopted_fields(each) for each in adopted], settings.output)
    else:
        nothing = ["Every pod that has a GPU is on a Lease: nothing to record."]
        print_lines(*(adopted_table(adopted) if adopted else nothing))
    failed = [each.holder.full_name for each in adopted if each.outcome in (Outcome.FAILED, Outcome.CHANGED)]
    if failed:
        why = f"{', '.join(failed)}: changed meanwhile, or the API server took no Lease for it."
        hint = f"kubectl auth can-i create leases -n {settings.carrel_namespace}"
        raise command_failed("Not all pods are recorded", why, hint, UNAVAILABLE)


async def _adopt(settings: AdoptSettings, access: "Access") -> "list[AdoptedPod]":
    from carrel.cli.cluster_reader import reading_cluster
    from carrel.cluster.record.adoption import Adoption

    async with reading_cluster(settings, access) as carrel:
        carrel.one_unit()
        adoption = Adoption(carrel)
        return adoption.plan() if settings.dry_run else await adoption.record()


def adopted_table(adopted: "Sequence[AdoptedPod]") -> list[str]:
    head = ["POD", "NODE", "GPU", "HOLDS", "RESULT"]
    rows = [
        [each.holder.full_name, each.node, ",".join(map(str, each.gpus)) or "–", each.amount, each.outcome.value]
        for each in adopted
    ]
    return aligned([head, *rows])


def _adopted_fields(each: "AdoptedPod") -> dict[str, Any]:
    return {
        "pod": each.holder.full_name,
        "uid": each.holder.uid,
        "node": each.node,
        "gpus": list(each.gpus),
        "holds": each.amount,
        "result": each.outcome.value,
    }


@dataclass(frozen=True)
class ReleaseSettings(ClusterQuerySettings):
    gpu: str = argument(..., "A node, or one GPU of it as NODE/NUMBER.", show_default=False)  # type: ignore[assignment] # required
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
    from carrel.settings import cluster_access

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
    typer.echo("\n".join(released_table(node, held)), err=not is_table)
    if why_away:
        typer.echo(f"{node} does not answer: {why_away}.", err=not is_table)
    if settings.dry_run:
        return
    if not why_away and not settings.force:
        raise _not_away(settings.gpu, node)
    question = "Is it certain that none of these pods runs any more? Delete them, and free their GPUs?"
    if not settings.yes and not is_confirmed(question, "Not released", f"carrel release {settings.gpu} --yes"):
        return
    right = ("Not allowed to release GPUs", f"kubectl auth can-i update leases -n {settings.carrel_namespace}")
    with cluster_errors(settings, right, ("Not everything is released", f"carrel release {settings.gpu}")):
        held = asyncio.run(_write(settings, node, held))
    if not is_table:
        print_data([_released_fields(node, each) for each in held], settings.output)
    else:
        typer.echo(f"Released {len(held)} share{'s' * (len(held) != 1)} of GPUs on {node}.")


async def _write(settings: ReleaseSettings, node: NodeName, shown: "Sequence[HeldGpu]") -> "Sequence[HeldGpu]":
    """What was released. The cluster is read again: it may have changed while somebody thought about the question."""
    from carrel.cli.cluster_reader import reading_cluster
    from carrel.cluster.record.release import GpuRelease
    from carrel.settings import cluster_access

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


def _place(text: str) -> tuple[NodeName, int | None]:
    from carrel.ledger.gpus import index_named

    node, slash, number = text.partition("/")
    index = index_named(number)
    if not node or (slash and index is None):
        why = "Write the node, or the node and the number of a GPU."
        raise command_failed(f"{text!r} is not a GPU", why, "carrel release dgx-2/0", USAGE)
    return NodeName(node), index


def released_table(node: str, held: "Sequence[HeldGpu]") -> list[str]:
    from carrel.ledger.gpus import label_of

    rows = [[node, label_of(each.index), str(each.holder), each.pod] for each in held]
    return aligned([["NODE", "GPU", "POD", "STATE"], *rows])


def _released_fields(node: str, each: "HeldGpu") -> dict[str, object]:
    return {"node": node, "gpu": each.index, "pod": each.holder.full_name, "uid": each.holder.uid, "state": each.pod}
