"""What is written on a pod when it gets its GPUs: Carrel's own words, and those of the dialect it asked in.

All of it goes onto the pod with the Binding, in one write. These are copies, for the kubelet's environment, for peers
and for people; who holds what is written on the Leases.
"""

from collections.abc import Sequence

from carrel.dialects import carrel, nvidia
from carrel.dialects.interface import PodBinding
from carrel.dialects.options import CudaDevices
from carrel.ledger.gpus import Gpu
from carrel.ledger.requests import are_dealt_out


def annotations(binding: PodBinding) -> dict[str, str]:
    placement = binding.placement
    notes = _shown(placement.gpus, binding)
    if not all(gpu.has_uuid for gpu in placement.gpus):
        notes |= carrel.write_slots([gpu.uuid for gpu in placement.gpus])
    if are_dealt_out(binding.pod_request.request.containers):
        # Also where they see the same GPUs: their environment refers to these keys since the pod was admitted.
        for container, gpus in placement.by_container().items():
            notes |= _shown(gpus, binding, container)
    return notes | binding.pod_request.dialect.bind_annotations(binding)


def _shown(gpus: Sequence[Gpu], binding: PodBinding, container: str = "") -> dict[str, str]:
    """What the variables of `visible_devices` read."""
    notes = carrel.write_devices([nvidia.visible_name(gpu) for gpu in gpus], container)
    if binding.options.cuda_devices is CudaDevices.INDEX:
        notes |= carrel.write_indices([gpu.index for gpu in gpus], container)
    return notes
