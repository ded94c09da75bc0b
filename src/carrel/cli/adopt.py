"""`carrel adopt`: records pods that have GPUs without a Lease, because they were there before Carrel."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from carrel.cli.options import ClusterQuerySettings, DataFormat
from carrel.cli.output import aligned, print_data, print_lines
from carrel.command_errors import FORBIDDEN, UNAVAILABLE, command_failed
from carrel.option_fields import option
from carrel.process import cluster_access

if TYPE_CHECKING:
    from carrel.cluster.record.adoption import AdoptedPod
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
    from carrel.kubernetes.cluster import ClusterError, Forbidden

    try:
        adopted = asyncio.run(_adopt(settings, cluster_access(settings)))
    except Forbidden as error:
        hint = f"kubectl auth can-i list leases -n {settings.carrel_namespace}"
        raise command_failed("Not allowed to look for pods", str(error), hint, FORBIDDEN) from None
    except ClusterError as error:
        raise command_failed("Not all pods are recorded", str(error), "carrel adopt --dry-run", UNAVAILABLE) from None
    if settings.output is not DataFormat.TABLE:
        print_data([_fields(each) for each in adopted], settings.output)
    else:
        print_lines(*(table(adopted) if adopted else ["Every pod that has a GPU is on a Lease: nothing to record."]))
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
        adoption = Adoption(carrel.cluster_ledger, carrel.lease_writer)
        return adoption.plan() if settings.dry_run else await adoption.record()


def table(adopted: "Sequence[AdoptedPod]") -> list[str]:
    head = ["POD", "NODE", "GPU", "HOLDS", "RESULT"]
    rows = [
        [each.holder.full_name, each.node, ",".join(map(str, each.gpus)) or "–", each.amount, each.outcome.value]
        for each in adopted
    ]
    return aligned([head, *rows])


def _fields(each: "AdoptedPod") -> dict[str, Any]:
    return {
        "pod": each.holder.full_name,
        "uid": each.holder.uid,
        "node": each.node,
        "gpus": list(each.gpus),
        "holds": each.amount,
        "result": each.outcome.value,
    }
