"""A node's GPUs are reported when they change and as a heartbeat; old data reverts nothing."""

from datetime import timedelta
from typing import Any

import pytest

from carrel.dialects.gpuclaim import Remarks
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.ids import GpuUuid, NodeName, PodUid
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import FieldValidation, MergePatch
from carrel.kubernetes.objects.quantity import whole_quantity
from carrel.kubernetes.objects.resources import NODES
from carrel.ledger.gpus import Node
from carrel.node.comparison import ComparisonResult
from carrel.node.report import Report, Reporter
from tests.kit.definitions import define_anew, define_as_the_claim_scheduler, forget_field
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, a_lab

NODE = a_node("n1", islands="aa")
MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


async def status(lab: Lab, name: str = "n1") -> dict[str, Any]:
    found: dict[str, Any] = (await lab.client.get(GPU_NODE_STATUSES, name)).get("status", {})
    return found


def report(lab: Lab, node: Node = NODE, **more: Any) -> Report:
    return Report(node, ComparisonResult({GpuUuid("GPU-n1-0"): [PodUid("uid-a")]}), lab.clock.now, Remarks(**more))


async def test_the_object_is_created_if_there_is_none() -> None:
    async with a_lab([]) as lab:
        assert await Reporter(lab.client, lab.clock).report(report(lab, memory_unit="MiB", memory_resource="node"))

        body = await lab.client.get(GPU_NODE_STATUSES, "n1")
        assert body["spec"] == {"nodeName": "n1"}
        words = body["status"]
        assert {key: words[key] for key in ("total", "heartbeat", "mode", "memoryUnit", "memoryResource")} == {
            "total": 2,
            "heartbeat": "2026-11-16T12:00:00Z",
            "mode": "native",
            "memoryUnit": "MiB",
            "memoryResource": "node",
        }
        assert words["devices"][0] == {
            "id": 0,
            "uuid": "GPU-n1-0",
            "model": "NVIDIA-RTX-A6000",
            "memoryMiB": 16276,
            "health": "Healthy",
            "island": "a",
            "bandwidthGBps": 0,
            "inUseBy": ["uid-a"],
        }


async def test_nothing_is_written_without_a_change_until_a_heartbeat_is_due() -> None:
    async with a_lab([]) as lab:
        reporter = Reporter(lab.client, lab.clock)
        assert await reporter.report(report(lab))
        lab.clock.now += timedelta(seconds=10)
        assert not await reporter.report(report(lab))
        lab.clock.now += timedelta(seconds=10)
        assert await reporter.report(report(lab))
        assert (await status(lab))["heartbeat"] == "2026-11-16T12:00:20Z"


async def test_a_change_is_written_at_once_and_what_is_over_is_removed() -> None:
    async with a_lab([]) as lab:
        reporter = Reporter(lab.client, lab.clock)
        await reporter.report(
            report(lab, message="no NVIDIA driver answers", memory_unit="MiB", memory_resource="plugin")
        )
        assert await reporter.memory_resource(N1) == "plugin"
        assert await reporter.report(report(lab))
        assert not {"message", "memoryUnit", "memoryResource"} & set(await status(lab))
        assert await reporter.memory_resource(N1) == await reporter.memory_resource(NodeName("unheard-of")) == ""
        assert await reporter.report(report(lab, a_node("n1", unusable="XID 79")))
        assert [gpu["reason"] for gpu in (await status(lab))["devices"]] == ["XID 79"] * 2


async def test_older_data_never_replaces_newer_data() -> None:
    async with a_lab([]) as lab:
        old, new = Reporter(lab.client, lab.clock), Reporter(lab.client, lab.clock)
        await old.report(report(lab))
        slept = report(lab, a_node("n1", gpus=1))
        lab.clock.now += timedelta(seconds=40)
        await new.report(report(lab))

        assert not await old.report(slept)
        assert (await status(lab))["total"] == 2
        assert await old.report(report(lab)), "what it sees now is news again"


async def test_a_report_that_was_not_written_does_not_count_as_reported() -> None:
    async with a_lab([]) as lab:
        await Reporter(lab.client, lab.clock).report(report(lab))
        lab.clock.now -= timedelta(seconds=60)
        set_back = Reporter(lab.client, lab.clock)

        assert not await set_back.report(report(lab))
        assert set_back.reported_at is None
        lab.clock.now += timedelta(seconds=61)
        assert await set_back.report(report(lab))


async def test_a_heartbeat_from_a_wrong_clock_does_not_block_reports_for_ever() -> None:
    async with a_lab([]) as lab:
        await Reporter(lab.client, lab.clock).report(report(lab))
        future = MergePatch({"status": {"heartbeat": "2031-01-01T00:00:00Z"}})
        await lab.client.patch(GPU_NODE_STATUSES, "n1", future, subresource="status")

        assert await Reporter(lab.client, lab.clock).report(report(lab))


async def test_a_deleted_object_is_created_again() -> None:
    async with a_lab([]) as lab:
        reporter = Reporter(lab.client, lab.clock)
        await reporter.report(report(lab))
        await lab.client.delete(GPU_NODE_STATUSES, "n1")
        lab.clock.now += timedelta(seconds=30)
        assert await reporter.report(report(lab))
        assert (await status(lab))["total"] == 2


@pytest.mark.parametrize(
    ("shown", "written"),
    [
        pytest.param({"capacity": "16k", "allocatable": "16k"}, False, id="it is there, as the API server writes it"),
        pytest.param({"capacity": "16000", "allocatable": "0"}, True, id="the kubelet says that none can be had"),
        pytest.param({"capacity": "0", "allocatable": "0"}, True, id="the kubelet was started without its checkpoint"),
        pytest.param({"capacity": None, "allocatable": None}, True, id="it is missing"),
        pytest.param({"capacity": "1.5", "allocatable": "16k"}, True, id="not a quantity"),
    ],
)
async def test_what_the_node_shows_is_corrected_when_it_differs(shown: dict[str, str | None], written: bool) -> None:
    async with a_lab([NODE]) as lab:
        status = {where: {MEM: amount} for where, amount in shown.items()}
        await lab.client.patch(NODES, "n1", MergePatch({"status": status}), subresource="status")
        async with lab.replica() as replica:
            reporter, writes = Reporter(replica.cluster, lab.clock), replica.transport.writes
            await reporter.show(None, {MEM: 3})
            await reporter.show(replica.nodes.store.get("n1"), {MEM: 16000, COUNT: 2})
            assert len(writes) == written

            amounts = (await lab.client.get(NODES, "n1"))["status"]
            assert {whole_quantity(amounts[where][MEM], "the Node", where) for where in shown} == {16000}


async def test_a_resource_is_removed_from_the_node_and_not_set_to_zero() -> None:
    async with a_lab([NODE]) as lab, lab.replica() as replica:
        await Reporter(replica.cluster, lab.clock).show(replica.nodes.store.get("n1"), {MEM: None})
        amounts = (await lab.client.get(NODES, "n1"))["status"]
        assert [MEM in amounts[where] for where in ("capacity", "allocatable")] == [False, False]
        assert amounts["capacity"][COUNT] == "2"


async def test_an_agent_that_is_newer_than_the_cluster_reports_and_names_what_was_dropped() -> None:
    async with a_lab([]) as lab:
        await forget_field(lab.client, "memoryUnit")
        client = Client(lab.api, FieldValidation.WARN)
        reporter = Reporter(client, lab.clock)
        assert reporter.unknown == ""

        assert await reporter.report(report(lab, memory_unit="MiB"))

        assert reporter.unknown == (
            "the cluster's GpuNodeStatus definition is older than this agent "
            "(unknown: status.memoryUnit); apply Carrel's crds.yaml again"
        )
        assert await reporter.report(report(lab, memory_unit="MiB", message=reporter.unknown))
        assert (await status(lab))["total"] == 2
        assert (await status(lab))["message"] == reporter.unknown
        assert not await reporter.report(report(lab, memory_unit="MiB", message=reporter.unknown)), "it is said once"

        await define_anew(lab.client)
        lab.clock.now += timedelta(seconds=20)
        assert await reporter.report(report(lab, memory_unit="MiB", message=reporter.unknown))
        assert reporter.unknown == "" and (await status(lab))["memoryUnit"] == "MiB"


async def test_where_the_message_was_dropped_too_it_says_afterwards_what_was_missing() -> None:
    async with a_lab([]) as lab:
        reporter = Reporter(Client(lab.api, FieldValidation.WARN), lab.clock)

        async def message_after(reports: int) -> str:
            for _ in range(reports):
                lab.clock.now += timedelta(seconds=20)
                said = "; ".join(filter(None, (reporter.unknown, reporter.restored)))
                assert await reporter.report(report(lab, memory_unit="MiB", message=said))
            return str((await status(lab)).get("message", ""))

        await define_as_the_claim_scheduler(lab.client)
        assert await message_after(2) == "", "this definition has no field for it"
        assert "status.message" in reporter.unknown

        await define_anew(lab.client)
        restored = await message_after(2)
        assert restored.startswith("another definition of GpuNodeStatus dropped status.devices[].uuid, ")
        assert restored.endswith(" until a few minutes ago; now they are reported again"), "an agent knows no zone"

        lab.clock.now += timedelta(minutes=10)
        assert await message_after(1) == ""


async def test_a_field_that_every_gpu_has_is_named_once() -> None:
    async with a_lab([]) as lab:
        await forget_field(lab.client, "devices", "items", "uuid")
        reporter = Reporter(Client(lab.api, FieldValidation.WARN), lab.clock)
        await reporter.report(report(lab))
        assert "(unknown: status.devices[].uuid)" in reporter.unknown
