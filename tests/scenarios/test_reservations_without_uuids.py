"""Where the kubelet chooses: a peer's definition of GpuNodeStatus drops what Carrel needs, until Carrel's is back."""

import json
from datetime import timedelta

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import FieldValidation, MergePatch
from carrel.kubernetes.objects.resources import LEASES
from carrel.node.comparison import ComparisonResult
from carrel.node.report import Report, Reporter
from tests.kit.coexist_node import HALF, CoexistNode, a_coexist_node
from tests.kit.definitions import define_anew, define_as_the_claim_scheduler
from tests.kit.eventually import eventually
from tests.kit.gpus import N1


async def report(node_lab: CoexistNode) -> None:
    """As the agent does. The controller then looks at the slots of the node."""
    lab, ledger, node = node_lab.lab, node_lab.replica.cluster_ledger, node_lab.kubelet.node
    given = node_lab.kubelet.given
    in_use = {gpu.uuid: [uid for uid, gpus in given.items() if gpu.uuid in gpus] for gpu in node.gpus}
    lab.clock.now += timedelta(seconds=20)
    reporter = Reporter(Client(lab.api, FieldValidation.WARN), lab.clock)
    assert await reporter.report(Report(node, ComparisonResult(in_use), lab.clock.now))
    await eventually(lambda: ledger.kubelet_chooses(N1) is not bool(reporter.unknown))
    await node_lab.replica.reservations.reconcile_slot("gpu-n1-0")


async def reservation(node_lab: CoexistNode) -> dict[str, str]:
    found: dict[str, str] = json.loads(await node_lab.reservation_on("gpu-n1-0"))
    return found


async def test_a_reservation_is_not_lost_while_uuids_are_missing_and_goes_on_when_they_are_back() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.run_pod("a", annotations=HALF)
        before, pod = await reservation(node_lab), await node_lab.the_reservation_pod()
        assert (before["state"], before["gpu"]) == ("held", "GPU-n1-1")

        await define_as_the_claim_scheduler(node_lab.lab.client)
        await report(node_lab)
        await node_lab.reconcile()
        assert await reservation(node_lab) == before
        assert (await node_lab.the_reservation_pod())["metadata"]["uid"] == pod["metadata"]["uid"]

        await define_anew(node_lab.lab.client)
        await report(node_lab)
        for name in ("b", "c"):
            await node_lab.run_pod(name, annotations=HALF)
        assert [await node_lab.gpu_of(name) for name in "abc"] == ["GPU-n1-1", "GPU-n1-1", "GPU-n1-0"]


async def test_a_gpu_that_was_recorded_by_its_place_is_found_again_by_its_uuid() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.run_pod("a", annotations=HALF)
        lost = json.dumps({**await reservation(node_lab), "state": "lost", "gpu": "n1/1"})
        patch = MergePatch({"metadata": {"annotations": {"carrel.dev/reservation": lost}}})
        await node_lab.lab.client.patch(LEASES, "gpu-n1-0", patch, "carrel")
        await node_lab.reconcile()

        found = await reservation(node_lab)
        assert (found["state"], found["gpu"]) == ("held", "GPU-n1-1")
        await node_lab.run_pod("b", annotations=HALF)
        assert await node_lab.gpu_of("b") == "GPU-n1-1"
