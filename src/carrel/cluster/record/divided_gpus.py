"""GPUs that their admin has divided anew while somebody held a part of them.

NVIDIA's driver takes no slice away from a program that runs in it; but a pod may hold one and do nothing. Its share
stays recorded on the Lease of the slice that is gone, or of the GPU that was whole. Nobody can say what the pod will
use once it runs, so the GPU, with all its slices, is set aside until the pod has ended.
"""

from collections.abc import Callable

from carrel.cluster.record.known_lease import KnownLease
from carrel.dialects.gpu_lease import lease_name
from carrel.ledger.gpus import MOST_SLICES, Gpu, named, physical_index, slice_index

LeaseNamed = Callable[[str], KnownLease | None]


def why_divided_anew(gpu: Gpu, lease_named: LeaseNamed, is_reported: Callable[[KnownLease], bool]) -> str:
    """Why the GPU is set aside for what somebody holds of its physical GPU; empty: it is not.

    `is_reported`: whether a node reports what the Lease is about.
    """
    physical = physical_index(gpu.index)
    for index in (physical, *(slice_index(physical, number) for number in range(MOST_SLICES))):
        lease = lease_named(lease_name(gpu.node, index))
        if index == gpu.index or lease is None or not lease.record.shares or is_reported(lease):
            continue
        holder = lease.record.shares[0].holder
        return (
            f"GPU {physical} was divided anew while {holder} holds {named(index)}, which is gone; it takes new pods"
            " when that one has ended"
        )
    return ""
