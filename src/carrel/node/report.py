"""Reports a node's cards: its GpuNodeStatus, and what the Node itself says: how many cards, and how much memory.

Written when something changed, and else every so often as a sign of life. An older look never replaces a newer one, so
an agent that was stopped for a while, or a predecessor that is still going, undoes nothing.

During an upgrade the cluster's definition may lack a field that this agent writes. The rest is reported all the same,
and the next report names the field in its message.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from carrel.dialects import gpuclaim
from carrel.dialects.gpuclaim import NO_REMARKS, Remarks
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import AlreadyExists, Cluster, Conflict, Json, MergePatch, NotFound
from carrel.kubernetes.objects.field_validation import unknown_fields
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.kubernetes.objects.quantity import whole_quantity
from carrel.kubernetes.objects.resources import NODES
from carrel.ledger.gpus import Node
from carrel.node.comparison import Findings
from carrel.parsing import Malformed
from carrel.parsing.time import instant

HEARTBEAT = timedelta(seconds=15)
"""With a round every ten seconds, well within half a minute. Readers take an agent for silent after two minutes."""
AHEAD = timedelta(minutes=2)
"""A heartbeat that is further in the future is a wrong clock, not a newer look."""
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Report:
    node: Node
    findings: Findings
    seen_at: datetime
    remarks: Remarks = NO_REMARKS


class Reporter:
    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._said: Json = {}
        self._said_at: datetime | None = None
        self._version = ""
        self._unknown: tuple[str, ...] = ()

    @property
    def unknown(self) -> str:
        """Which fields of the last report the cluster dropped, in words; empty if none."""
        if not self._unknown:
            return ""
        fields = ", ".join(self._unknown)
        why = "the cluster's GpuNodeStatus definition is older than this agent"
        return f"{why} (unknown: {fields}); apply Carrel's crds.yaml again"

    @property
    def said_at(self) -> datetime | None:
        """When the cluster last heard of us."""
        return self._said_at

    async def report(self, report: Report) -> bool:
        """Whether it was written: there is news, or the last sign of life is old. Raises `ClusterError`."""
        body = gpuclaim.node_status(report.node, report.findings.in_use_by, report.seen_at, report.remarks)
        news = {**body["status"], "heartbeat": ""}
        is_due = self._said_at is None or not timedelta() <= self._now() - self._said_at < HEARTBEAT
        if news == self._said and not is_due:
            return False
        written = await self._write(body, report.seen_at)
        self._said = news if written else {}
        if written:
            self._said_at = self._now()
        return written

    async def memory_resource(self, node: str) -> str:
        """How the last report says that memory is offered; empty if it does not say. Raises `ClusterError`."""
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
                self._version = ""  # somebody else wrote or deleted it: look what it says now
                continue
            self._version = answer["metadata"]["resourceVersion"]
            self._unknown = unknown_fields(self._cluster.warnings(GPU_NODE_STATUSES, name, subresource="status"))
            return True
        return False

    async def _there(self, body: Json) -> Json:
        """The object as it is, made if there is none."""
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
        """On the Node itself, where the kubelet may forget or overwrite them; None: it says nothing of the resource.

        Capacity is written too: the kubelet makes what can be had of a resource that it does not know itself from it.
        Raises `ClusterError`.
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


def _amount(shown: Mapping[str, str], resource: str) -> int | None:
    """As a number: the API server writes 16000 as 16k."""
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
