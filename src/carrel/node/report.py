"""Reports a node's GPUs: in its GpuNodeStatus, and on the Node itself, how many GPUs and how much memory it has.

Written when something changed, and otherwise at intervals as a heartbeat. Older data never replaces newer data, so an
agent that was stopped for a while, or an old one that is still ending, reverts nothing.

The cluster's definition may lack a field that this agent writes: during an upgrade, or because another product has put
its own definition of that name in the place of Carrel's. The API server drops such fields, so what it has stored is
compared with what was sent. The rest is still reported, and the fields are named: in the agent's log, by an Event on
the Node, and in the message of the next report. Where the message is dropped too, it says afterwards what was missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from carrel.dialects import gpuclaim
from carrel.dialects.gpu_usage import ACTIVE, USAGE
from carrel.dialects.gpuclaim import NO_REMARKS, Remarks
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.ids import NodeName
from carrel.kubernetes.cluster import AlreadyExists, Cluster, Conflict, Json, MergePatch, NotFound
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.events import WARNING, Note
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.kubernetes.objects.quantity import whole_quantity
from carrel.kubernetes.objects.resources import NODES
from carrel.ledger.gpus import Node
from carrel.node.comparison import COMPONENT, ComparisonResult
from carrel.parsing import Malformed
from carrel.parsing.time import instant

FIELDS_DROPPED = "GPUFieldsDropped"
HEARTBEAT = timedelta(seconds=15)
"""With a run every ten seconds, well within half a minute. Readers ignore a node after two minutes without one."""
AHEAD = timedelta(minutes=2)
"""A heartbeat that is further in the future comes from a wrong clock, not from newer data."""
SHOW_RESTORED = timedelta(minutes=10)
"""So long it is said that fields were missing: what was decided meanwhile may have to be looked at."""
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Report:
    node: Node
    result: ComparisonResult
    seen_at: datetime
    remarks: Remarks = NO_REMARKS


class Reporter:
    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._reported: Json = {}
        self._reported_at: datetime | None = None
        self._version = ""
        self._unknown: tuple[str, ...] = ()
        self._restored = ""
        self._restored_at: datetime | None = None
        self._events = EventRecorder(cluster, COMPONENT, now)
        self._told = ""

    @property
    def unknown(self) -> str:
        """Which fields of the last report the cluster dropped, for an admin; empty if none."""
        if not self._unknown:
            return ""
        fields = ", ".join(self._unknown)
        why = "the cluster's GpuNodeStatus definition is older than this agent"
        return f"{why} (unknown: {fields}); apply Carrel's crds.yaml again"

    @property
    def restored(self) -> str:
        """Which fields the cluster dropped until a short time ago; empty if none."""
        is_recent = self._restored_at is not None and self._now() - self._restored_at < SHOW_RESTORED
        return self._restored if is_recent and not self._unknown else ""

    def _set_unknown(self, fields: tuple[str, ...]) -> None:
        if self._unknown and not fields:
            self._restored_at = self._now()
            self._restored = (
                f"another definition of GpuNodeStatus dropped {', '.join(self._unknown)} until a few minutes ago; now"
                " they are reported again"
            )
        self._unknown = fields

    async def tell_unknown(self, node: NodeObject | None) -> None:
        """An Event on the Node, once for each set of fields. Raises `ClusterError`."""
        unknown = self.unknown
        if node is not None and unknown and unknown != self._told:
            await self._events.record(node, Note(FIELDS_DROPPED, unknown, WARNING), resource=NODES)
        if node is not None:
            self._told = unknown

    @property
    def reported_at(self) -> datetime | None:
        """When the cluster last heard of us."""
        return self._reported_at

    async def report(self, report: Report) -> bool:
        """Whether it was written: something changed, or the last heartbeat is old. Raises `ClusterError`."""
        body = gpuclaim.node_status(report.node, report.result.in_use_by, report.seen_at, report.remarks)
        status = {
            **body["status"],
            "heartbeat": "",
            USAGE: (),
            ACTIVE: 0,
        }  # what GPUs do is no reason to write, as the time is not
        is_due = self._reported_at is None or not timedelta() <= self._now() - self._reported_at < HEARTBEAT
        if status == self._reported and not is_due:
            return False
        written = await self._write(body, report.seen_at)
        self._reported = status if written else {}
        if written:
            self._reported_at = self._now()
        return written

    async def memory_resource(self, node: NodeName) -> str:
        """The memory mode in the last report; empty if it has none. Raises `ClusterError`."""
        try:
            there = await self._cluster.get(GPU_NODE_STATUSES, node)
        except NotFound:
            return ""
        return str((there.get("status") or {}).get(gpuclaim.MEMORY_RESOURCE, ""))

    async def _write(self, body: Json, seen_at: datetime) -> bool:
        name = body["metadata"]["name"]
        for _ in range(ATTEMPTS):
            if not self._version:
                there = await self._there(body)
                self._version = there["metadata"]["resourceVersion"]
                if _is_newer(there, seen_at):
                    return False
            patch = MergePatch({"metadata": {"resourceVersion": self._version}, **gpuclaim.report(body["status"])})
            try:
                answer = await self._cluster.patch(GPU_NODE_STATUSES, name, patch, subresource="status")
            except (Conflict, NotFound):
                self._version = ""  # another process wrote or deleted it: read it again
                continue
            self._version = answer["metadata"]["resourceVersion"]
            self._set_unknown(dropped_fields(body["status"], answer.get("status") or {}))
            return True
        return False

    async def _there(self, body: Json) -> Json:
        """The object as it is, created if there is none."""
        try:
            return await self._cluster.get(GPU_NODE_STATUSES, body["metadata"]["name"])
        except NotFound:
            pass
        try:
            bare = {key: value for key, value in body.items() if key != "status"}
            return await self._cluster.create(GPU_NODE_STATUSES, bare)
        except AlreadyExists:
            return await self._cluster.get(GPU_NODE_STATUSES, body["metadata"]["name"])

    async def show(self, node: NodeObject | None, amounts: Mapping[str, int | None]) -> None:
        """On the Node itself, where the kubelet may remove or overwrite them; None: remove the resource.

        Capacity is written too: the kubelet derives the allocatable amount of a resource that it does not manage from
        it. Raises `ClusterError`.
        """
        if node is None:
            return
        shown = (node.status.capacity, node.status.allocatable)
        changed = {
            resource: None if amount is None else str(amount)
            for resource, amount in amounts.items()
            if any(_amount(each, resource) != amount for each in shown)
        }
        if changed:
            patch = MergePatch({"status": {"capacity": changed, "allocatable": changed}})
            await self._cluster.patch(NODES, node.metadata.name, patch, subresource="status")


def dropped_fields(sent: Json, stored: Json, path: str = "status") -> tuple[str, ...]:
    """The fields that were sent and are not stored, each once: `status.devices[].uuid`."""
    found: dict[str, None] = {}
    for key, value in sent.items():
        where = f"{path}.{key}"
        if key not in stored:
            found[where] = None
        elif isinstance(value, list) and isinstance(stored[key], list):
            for item, there in zip(value, stored[key], strict=False):
                if isinstance(item, dict) and isinstance(there, dict):
                    found.update(dict.fromkeys(dropped_fields(item, there, f"{where}[]")))
    return tuple(found)


def _amount(shown: Mapping[str, str], resource: str) -> int | None:
    """The amount as a number: the API server writes 16000 as 16k."""
    if resource not in shown:
        return None
    try:
        return whole_quantity(shown[resource], "the Node", resource)
    except Malformed:
        return -1


def _is_newer(there: Json, seen_at: datetime) -> bool:
    heartbeat = there.get("status", {}).get("heartbeat")
    if not heartbeat:
        return False
    try:
        at = instant(heartbeat, "GpuNodeStatus", "status.heartbeat")
    except Malformed:
        return False
    return seen_at < at <= seen_at + AHEAD
