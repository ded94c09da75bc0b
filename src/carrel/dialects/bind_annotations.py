"""What is written on a pod when it gets its GPUs: Carrel's own words, and those of the dialect it asked in.

All of it goes onto the pod with the Binding, in one write. These are copies, for the kubelet's environment, for peers
and for people; who holds what is written on the Leases.
"""

from carrel.dialects import carrel
from carrel.dialects.interface import PodBinding
from carrel.ledger.requests import are_dealt_out


def annotations(binding: PodBinding) -> dict[str, str]:
    placement = binding.placement
    notes = carrel.write_devices([gpu.uuid for gpu in placement.gpus])
    by_container = placement.by_container()
    if are_dealt_out(binding.pod_request.request.containers):
        # Also where they see the same GPUs: their environment refers to these keys since the pod was admitted.
        for container, gpus in by_container.items():
            notes |= carrel.write_devices([gpu.uuid for gpu in gpus], container)
    return notes | binding.pod_request.dialect.bind_annotations(binding)
