"""The rules by which the extender reads and places pods, as it reports them in the cluster.

    Lease carrel-extender, in Carrel's own namespace
      carrel.dev/rules: {"memoryUnit": "GiB", "sharedClaimsPerGpu": 4, …}

Whoever reads the cluster takes them from there (`rules_in_force`) and has no settings of its own: a number on a pod
means nothing without the unit in which the scheduler counts. Only Carrel's accounts may write the Lease. Each replica
of the extender writes it when it starts, and again if it is gone.
"""

from collections.abc import Iterable
from contextlib import suppress
from zoneinfo import ZoneInfo

import msgspec

from carrel.cluster.holders import Holders
from carrel.cluster.options import ClusterOptions
from carrel.dialects.carrel import RULES
from carrel.dialects.options import DialectOptions, DraDriver, Unit
from carrel.dialects.registry import ALL
from carrel.kubernetes.cluster import AlreadyExists, Cluster, NotFound, Selection
from carrel.kubernetes.objects.pods import annotation_field
from carrel.kubernetes.objects.resources import LEASES
from carrel.ledger.tiers import TierPolicy
from carrel.parsing import Malformed

LEASE = "carrel-extender"


class PlacementRules(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Every setting of the extender that changes whether a pod gets a GPU, or which."""

    memory_unit: Unit
    shared_claims_per_gpu: int
    opportunistic_gpus: int
    revoke_older_pods: bool
    nobodys_pods_keep: bool = False
    claims_of: DraDriver | None
    """Whose ResourceClaims are counted; None: nobody's."""
    needs_seal: bool
    schedulers: tuple[str, ...] | None
    """Whose pods are bound; None: of all."""
    spreads: bool
    zone: str = "UTC"
    """In which times are written for people."""

    @classmethod
    def of(cls, options: ClusterOptions, schedulers: Iterable[str] | None, *, spreads: bool) -> "PlacementRules":
        dialects, tiers = options.dialect_options, options.tier_policy
        return cls(
            memory_unit=dialects.memory_unit,
            shared_claims_per_gpu=dialects.shared_claims_per_gpu,
            opportunistic_gpus=tiers.opportunistic_gpus,
            revoke_older_pods=tiers.older_pods_are_revocable,
            nobodys_pods_keep=tiers.nobodys_pods_keep,
            claims_of=options.holders.driver,
            needs_seal=options.seal is not None,
            schedulers=None if schedulers is None else tuple(sorted({*schedulers, *ALL.scheduler_names})),
            spreads=spreads,
            zone=str(options.zone),
        )

    def options(self, namespace: str, holders: type[Holders]) -> ClusterOptions:
        """For a process that reads once: it cannot see whether more pods of a gang come."""
        return ClusterOptions(
            namespace,
            DialectOptions(self.memory_unit, self.shared_claims_per_gpu, gang_settle_s=0.0),
            tier_policy=TierPolicy(self.opportunistic_gpus, self.revoke_older_pods, self.nobodys_pods_keep),
            holders=holders,
            zone=ZoneInfo(self.zone),
        )


async def report_rules(cluster: Cluster, namespace: str, rules: PlacementRules) -> None:
    """Makes the Lease say these rules. Raises `ClusterError`; then it has to be done again."""
    notes = {RULES: msgspec.json.encode(rules).decode()}
    metadata = {"name": LEASE, "namespace": namespace, "annotations": notes}
    body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}
    with suppress(AlreadyExists):
        await cluster.create(LEASES, body, namespace)
        return
    there = await cluster.get(LEASES, LEASE, namespace)
    if there["metadata"].get("annotations") != notes:
        version = there["metadata"]["resourceVersion"]
        await cluster.update(LEASES, {**there, "metadata": {**metadata, "resourceVersion": version}})


async def rules_in_force(cluster: Cluster, namespace: str) -> PlacementRules | None:
    """The rules that the extender reports; None: it has not reported any. Raises `ClusterError` or `Malformed`."""
    with suppress(NotFound):
        # By a list: people who may read Leases may list them.
        for lease in (await cluster.list(LEASES, Selection(namespace, fields=f"metadata.name={LEASE}"))).items:
            written = lease.metadata.annotations.get(RULES, "")
            try:
                return msgspec.json.decode(written, type=PlacementRules)
            except (msgspec.ValidationError, msgspec.DecodeError) as error:
                expected = f"the rules of an extender of this version ({error})"
                raise Malformed(f"Lease {namespace}/{LEASE}", annotation_field(RULES), written, expected) from None
    return None
