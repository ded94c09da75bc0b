"""What GPUs are used for, as a node's agent reports it: Carrel's own part of a GpuNodeStatus.

    status.usage[]   uuid, since, until, sampledSeconds, busySeconds, activeSeconds, usedMiBSeconds, energyJoules,
                     lastActive, sampledSince, and of the last sample: utilisationPercent, usedMiB, powerWatts,
                     temperatureCelsius

    status.active    how many of them have computed within the last half hour, for `kubectl get`

What a GPU or its driver does not say is absent. Nothing that decides about GPUs reads this part: for the ledger, a
report in which nothing else has changed is a heartbeat. Who shows it watches the same objects as `NODE_USAGES`.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.ids import NO_GPU, GpuUuid
from carrel.kubernetes.objects.kinds import NodeMetadata, Object, ObjectPart
from carrel.kubernetes.objects.resources import Resource
from carrel.ledger.gpu_activity import IDLE_AFTER
from carrel.ledger.gpu_usage import GpuSample, GpuUsage
from carrel.ledger.gpus import MiB
from carrel.parsing.time import instant, seconds

USAGE, ACTIVE = "usage", "active"
"""The fields of the status."""


class UsageEntry(ObjectPart):
    """The usage of one GPU."""

    uuid: GpuUuid = NO_GPU
    since: str = ""
    until: str = ""
    sampled_seconds: int = 0
    busy_seconds: int = 0
    active_seconds: int = 0
    used_mib_seconds: int = msgspec.field(default=0, name="usedMiBSeconds")
    energy_joules: int = 0
    last_active: str = ""
    sampled_since: str = ""
    utilisation_percent: int | None = None
    used_mib: int | None = msgspec.field(default=None, name="usedMiB")
    power_watts: int | None = None
    temperature_celsius: int | None = None


class NodeUsageStatus(ObjectPart):
    usage: tuple[UsageEntry, ...] = ()


class NodeUsage(Object):
    """A GpuNodeStatus, of which only the usage is read."""

    metadata: NodeMetadata = msgspec.field(default_factory=NodeMetadata)
    status: NodeUsageStatus = msgspec.field(default_factory=NodeUsageStatus)


NODE_USAGES = Resource(
    NodeUsage,
    GPU_NODE_STATUSES.group,
    GPU_NODE_STATUSES.version,
    GPU_NODE_STATUSES.plural,
    GPU_NODE_STATUSES.kind,
    namespaced=False,
)


def write_usage(usages: Mapping[GpuUuid, GpuUsage] | None) -> dict[str, Any]:
    """Return the part of the status; None: nothing is known, and what is there stays. Fractions are cut off: the sums
    that are kept have them."""
    if usages is None:
        return {}
    return {
        USAGE: [_written(uuid, usage) for uuid, usage in usages.items()],
        ACTIVE: sum(_is_active(usage) for usage in usages.values()),
    }


def _is_active(usage: GpuUsage) -> bool:
    return usage.last_active is not None and usage.until - usage.last_active < IDLE_AFTER


def _written(uuid: GpuUuid, usage: GpuUsage) -> dict[str, Any]:
    latest = usage.latest
    entry = UsageEntry(
        uuid=uuid,
        since=seconds(usage.since),
        until=seconds(usage.until),
        sampled_seconds=int(usage.sampled.total_seconds()),
        busy_seconds=int(usage.busy.total_seconds()),
        active_seconds=int(usage.active.total_seconds()),
        used_mib_seconds=int(usage.used_mib_seconds),
        energy_joules=int(usage.energy_joules),
        last_active=seconds(usage.last_active) if usage.last_active else "",
        sampled_since=seconds(usage.sampled_since) if usage.sampled_since else "",
        utilisation_percent=_rounded(latest.utilisation, 100),
        used_mib=latest.used,
        power_watts=_rounded(latest.power_watts),
        temperature_celsius=latest.temperature_celsius,
    )
    written: dict[str, Any] = msgspec.to_builtins(entry)
    return written


def read_usage(status: NodeUsage) -> dict[GpuUuid, GpuUsage]:
    """Return what the agent of the node has counted. Raises `Malformed`."""
    return {entry.uuid: _read(entry, status.metadata.name) for entry in status.status.usage}


def read_usage_of(status: NodeUsage, gpu: GpuUuid) -> GpuUsage | None:
    """Read what one GPU is used for; None: the report has nothing about it. Raises `Malformed`."""
    entry = next((entry for entry in status.status.usage if entry.uuid == gpu), None)
    return _read(entry, status.metadata.name) if entry is not None else None


def _read(entry: UsageEntry, node: str) -> GpuUsage:
    where = f"GpuNodeStatus {node}"
    percent, watts = entry.utilisation_percent, entry.power_watts
    return GpuUsage(
        since=instant(entry.since, where, "status.usage[].since"),
        until=instant(entry.until, where, "status.usage[].until"),
        latest=GpuSample(
            percent / 100 if percent is not None else None,
            MiB(entry.used_mib) if entry.used_mib is not None else None,
            float(watts) if watts is not None else None,
            entry.temperature_celsius,
        ),
        sampled=timedelta(seconds=entry.sampled_seconds),
        busy=timedelta(seconds=entry.busy_seconds),
        active=timedelta(seconds=entry.active_seconds),
        used_mib_seconds=entry.used_mib_seconds,
        energy_joules=entry.energy_joules,
        last_active=_perhaps(entry.last_active, where, "lastActive"),
        sampled_since=_perhaps(entry.sampled_since, where, "sampledSince"),
    )


def _perhaps(text: str, where: str, field: str) -> datetime | None:
    return instant(text, where, f"status.usage[].{field}") if text else None


def _rounded(value: float | None, times: int = 1) -> int | None:
    return round(value * times) if value is not None else None
