"""What must always hold, counted again from Leases, pods, reports and bookings."""

from collections.abc import Sequence
from datetime import timedelta

from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.cluster.invariants import TOLERATED, Invariant, observe, violations
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import EVERYTHING, Selection
from carrel.kubernetes.objects.resources import LEASES, NODES, PODS

SHOWN = 5
AGAIN = "carrel doctor, once more in a few minutes: it may be over"


async def invariants(of: Installation) -> Sequence[Finding]:
    # Leases last: a pod that is bound meanwhile has its Lease before.
    listed = [(await of.client.list(kind, EVERYTHING)).items for kind in (GPU_NODE_STATUSES, NODES, PODS, BOOKINGS)]
    statuses, nodes, pods, bookings = listed
    leases = (await of.client.list(LEASES, Selection(of.namespace))).items
    found = violations(observe(statuses, nodes, leases, pods, bookings, of.now()))  # type: ignore[arg-type] # by position
    if not found:
        return [ok(f"all {len(Invariant)} hold, over {len(leases)} Leases")]
    lasting = [each for each in found if TOLERATED[each.invariant] == timedelta()]
    brief = [each for each in found if each not in lasting]
    defect = of.kubectl("logs deployment/carrel-controller") + ", and tell Carrel's developers"
    more = [f"; and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return [
        *(fail(f"{each.words} ({each.invariant.value})", defect) for each in lasting[:SHOWN]),
        *(warn(f"{each.words} ({each.invariant.value})", AGAIN) for each in brief[: max(0, SHOWN - len(lasting))]),
        *(warn(text.removeprefix("; "), "carrel inspect --details") for text in more),
    ]
