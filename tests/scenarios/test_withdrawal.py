"""What agents wrote on the Nodes is taken off when Carrel goes, and nothing else is."""

import asyncio
from typing import Any

import pytest

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.resources import NODES
from carrel.node.withdrawal import StillThere, Withdrawal
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


async def shows(lab: Lab, node: str) -> list[set[str]]:
    status: dict[str, Any] = (await lab.client.get(NODES, node))["status"]
    return [{MEM, COUNT} & set(status[where]) for where in ("capacity", "allocatable")]


async def report(lab: Lab, node: str, way: str) -> None:
    patch = MergePatch({"status": {"memoryResource": way}})
    await lab.client.patch(GPU_NODE_STATUSES, node, patch, subresource="status")


async def test_only_what_an_agent_wrote_is_removed() -> None:
    async with a_lab([a_node("on-node"), a_node("by-plugin"), a_node("somebody-elses")]) as lab:
        await report(lab, "on-node", "node")
        await report(lab, "by-plugin", "plugin")
        await lab.client.delete(GPU_NODE_STATUSES, "somebody-elses")

        assert await Withdrawal(lab.client, quiet_s=0.0).withdraw() == ["by-plugin", "on-node"]

        assert await shows(lab, "on-node") == [set(), set()]
        assert await shows(lab, "by-plugin") == [{MEM}, {MEM}], "the kubelet counts it"
        assert await shows(lab, "somebody-elses") == [{MEM, COUNT}] * 2
        assert (await lab.client.get(NODES, "on-node"))["status"]["capacity"]["nvidia.com/gpu"] == "2"


async def test_where_nothing_is_left_nothing_is_waited_for() -> None:
    async with a_lab([]) as lab:
        assert await Withdrawal(lab.client, quiet_s=3600.0).withdraw() == []


async def test_an_agent_that_still_runs_is_named() -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab, lab.replica() as replica:
        await report(lab, "n1", "node")
        withdrawal = asyncio.ensure_future(Withdrawal(lab.client, quiet_s=3600.0).withdraw())
        await eventually(lambda: MEM not in replica.nodes.store.get("n1").status.capacity)  # type: ignore[union-attr] # it is there
        back = MergePatch({"status": {"capacity": {MEM: "7"}}})
        await lab.client.patch(NODES, "n1", back, subresource="status")

        with pytest.raises(StillThere, match=r"^n1$"):
            await withdrawal
