"""What is written on a pod when it gets its cards: Carrel's own words, and those of the dialect it asked in.

All of it goes onto the pod with the Binding, in one write. These are copies, for the kubelet's environment, for peers
and for people; who holds what is written on the Leases.
"""

from collections.abc import Mapping

from carrel.dialects import carrel, gpuclaim, gpushare, kai
from carrel.dialects.registry import Dialect, DialectOptions, PodRequest
from carrel.ledger.placement import Placement
from carrel.ledger.requests import WHOLE

NO_LABELS: Mapping[str, str] = {}


def annotations(
    ask: PodRequest,
    placement: Placement,
    assumed_at_ns: int,
    dialect_options: DialectOptions,
    *,
    config_maps: str = "",
    node_labels: Mapping[str, str] = NO_LABELS,
) -> dict[str, str]:
    """`config_maps` is the prefix of those that KAI's tools read, where there will be any."""
    notes = carrel.write_devices([gpu.uuid for gpu in placement.gpus])
    by_container = placement.by_container()
    if ask.dialect is Dialect.NVIDIA and len(by_container) > 1:
        # Also where they see the same cards: their environment refers to these since before that was known.
        for container, gpus in by_container.items():
            notes |= carrel.write_devices([gpu.uuid for gpu in gpus], container)
    if ask.dialect is Dialect.GPUSHARE:
        notes |= _gpushare(ask, placement, assumed_at_ns, dialect_options.memory_unit)
        is_disabled = node_labels.get(gpushare.NO_ISOLATION_LABEL) == "true"
        notes[carrel.CGPU_DISABLE] = "true" if is_disabled else "false"
    elif ask.dialect is Dialect.GPUCLAIM:
        notes |= gpuclaim.write_allocated([gpu.index for gpu in placement.gpus])
    elif ask.dialect is Dialect.KAI:
        notes |= kai.received(ask.request.amount != WHOLE, config_maps)
    return notes


def _gpushare(ask: PodRequest, placement: Placement, assumed_at_ns: int, unit: gpushare.Unit) -> dict[str, str]:
    card = placement.gpus[0]
    pod_units = unit.from_memory(ask.request.amount.on(card.memory))
    assumption = gpushare.Assumption(card.index, unit.from_memory(card.memory), pod_units, False, assumed_at_ns)
    return gpushare.write_assumption(assumption)
