"""What people and peers' tools see where the kubelet chooses: the numbers and UUIDs of GPUs, never of slots."""

import re
from datetime import timedelta

from carrel.bookings.pages.cluster_map import PodOnMap, node_on_map, totals
from carrel.cli.explain import as_data, as_text, placements
from carrel.cli.inspect import set_aside
from carrel.cluster.record.shown_gpus import shown_gpu, shown_gpus
from carrel.cluster.record.slot_gpus import indices_of
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.dialects.kai_reservation import BEFORE_KAI_0_17
from carrel.ids import GpuUuid, PodUid
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.resources import CONFIG_MAPS, PODS
from carrel.lifecycle.reservations.kai_metadata import KaiMetadataWriter
from carrel.lifecycle.reservations.reservation_pods import ReservationOptions, ReservationPods
from tests.kit.coexist import OLD_RESERVATIONS, create_reservation_namespace, reservation_pods
from tests.kit.coexist_node import HALF, WHOLE, a_coexist_node
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_node, memory, whole
from tests.kit.lab import a_lab

ASKED = {"half": memory(8138), "whole": whole()}


async def test_kais_tools_find_the_group_and_the_gpu_of_a_fraction_pod() -> None:
    async with a_coexist_node() as node_lab:
        pod = await node_lab.run_pod("a", annotations={**HALF, "gpu-fraction-num-devices": "2"})
        await node_lab.catch_up()
        copies = KaiMetadataWriter(node_lab.replica)

        seen = await node_lab.replica.sees(pod)
        for _ in range(2):  # also after a crash in between
            assert await copies.write(seen)

        labels = (await node_lab.lab.client.get(PODS, "a", "lab"))["metadata"]["labels"]
        assert labels == {"runai-gpu-group/gpu-n1-0": "gpu-n1-0", "runai-gpu-group/gpu-n1-1": "gpu-n1-1"}
        prefix = (await node_lab.lab.annotations("a"))["runai/shared-gpu-configmap"]
        for name in (f"{prefix}-0", f"{prefix}-0-evar"):
            written = await node_lab.lab.client.get(CONFIG_MAPS, name, "lab")
            assert written["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
            assert written["data"] == {
                "NVIDIA_VISIBLE_DEVICES": await node_lab.gpu_of("a"),
                "RUNAI-VISIBLE-DEVICES": await node_lab.gpu_of("a"),
                "RUNAI_NUM_OF_GPUS": "0.50",
                "GPU_PORTION": "0.50",
            }


async def test_kais_tools_find_the_gpu_of_a_fraction_pod_on_a_native_node_too() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await lab.pod("a", annotations=HALF)
        assert await replica.bind(pod, "n1") is None
        seen = await replica.sees(await lab.client.get(PODS, "a", "lab"))
        await eventually(lambda: replica.cluster_ledger.leases_of(seen.metadata.uid))

        assert await KaiMetadataWriter(replica).write(seen)

        prefix = (await lab.annotations("a"))["runai/shared-gpu-configmap"]
        written = await lab.client.get(CONFIG_MAPS, f"{prefix}-0", "lab")
        assert written["data"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-n1-0"
        assert written["data"]["GPU_PORTION"] == "0.50"


async def test_annotations_that_a_user_writes_create_no_config_map() -> None:
    async with a_coexist_node() as node_lab:
        forged = {**HALF, "carrel.dev/slots": "n1/0", "runai/shared-gpu-configmap": "kube-root-ca.crt"}
        seen = await node_lab.replica.sees(await node_lab.lab.pod("forged", annotations=forged))

        assert not await KaiMetadataWriter(node_lab.replica).write(seen)


async def test_a_claim_shows_the_gpu_and_not_the_slot() -> None:
    async with a_coexist_node() as node_lab:
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "one"}}
        await node_lab.lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 1}}}, "lab")
        await eventually(lambda: node_lab.replica.claims.store.get("one", "lab"))
        pod = await node_lab.run_pod("a", annotations={"gpu.scheduling/claim": "one"})
        await node_lab.catch_up()

        assert (await node_lab.lab.annotations("a"))["gpu.scheduling/allocated"] == "n1:1"
        assert list(await node_lab.lab.held()) == ["gpu-n1-0"], "the slot has another number"
        uid, ledger = pod["metadata"]["uid"], node_lab.replica.cluster_ledger
        assert indices_of(ledger, ledger.leases_of(uid), uid) == (1,)


async def test_the_gpu_of_a_claim_whose_pod_asks_the_kubelet_itself_is_shown_when_the_agent_knows_it() -> None:
    async with a_coexist_node() as node_lab:
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "one"}}
        await node_lab.lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 1}}}, "lab")
        await eventually(lambda: node_lab.replica.claims.store.get("one", "lab"))
        pod = await node_lab.run_pod("a", annotations={"gpu.scheduling/claim": "one"}, limits=WHOLE)
        await node_lab.reconcile(2)
        uid, ledger = pod["metadata"]["uid"], node_lab.replica.cluster_ledger
        assert indices_of(ledger, ledger.leases_of(uid), uid) == (), "slot 0 is no GPU 0"

        await node_lab.kubelet.report_users()
        await eventually(lambda: ledger.users_of(node_lab.kubelet.node.gpus[1]))
        assert indices_of(ledger, ledger.leases_of(uid), uid) == (1,)


async def test_the_map_shows_gpus_with_their_holders_and_changes_when_the_agent_says_which_they_have() -> None:
    async with a_coexist_node(gpus=3) as node_lab:
        await node_lab.run_pod("half", annotations=HALF)  # GPU 2, on slot 0
        await node_lab.run_pod("whole", limits=WHOLE)  # GPU 1, on slot 1
        await node_lab.reconcile(2)
        state, ledger = node_lab.replica, node_lab.replica.cluster_ledger
        before = state.ledger.version
        await node_lab.kubelet.report_users()
        await eventually(lambda: ledger.users_of(node_lab.kubelet.node.gpus[1]))
        assert state.ledger.changed_since(before) == ["n1"]

        entries = shown_gpus(ledger, N1)
        seen = node_on_map(N1, state.ledger.node(N1), entries, lambda uid: PodOnMap(None))
        assert [(shown.gpu.uuid, shown.gpu.index, [each.name for each in shown.shares]) for shown in seen.gpus] == [
            ("GPU-n1-0", 0, []),
            ("GPU-n1-1", 1, ["lab/whole"]),
            ("GPU-n1-2", 2, ["lab/half"]),
        ]
        assert totals(state.ledger, lambda node: shown_gpus(ledger, node)).unheld == 1
        one = shown_gpu(ledger, GpuUuid("GPU-n1-2"))
        assert one is not None and [share.holder.name for share in one.shares.values()] == ["half"]
        assert shown_gpu(ledger, GpuUuid("n1/0")) is None


async def test_a_gpu_that_the_kubelet_cannot_give_is_shown_with_the_reason() -> None:
    async with a_coexist_node() as node_lab:
        node_lab.kubelet.unhealthy = {"GPU-n1-1"}  # its plugin says so, the agent does not
        await node_lab.kubelet.advertise()
        ledger = node_lab.replica.cluster_ledger
        await eventually(lambda: node_lab.replica.ledger.rooms[N1].whole == 1)

        entries = shown_gpus(ledger, N1)
        assert totals(node_lab.replica.ledger, lambda node: entries).unheld == 1
        assert [entry.gpu.unusable for entry in entries] == [
            "",
            "the kubelet of n1 has 1 of 2 GPUs to give, and they are in use",
        ]


async def test_explain_names_no_slot_as_if_it_were_a_gpu() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.run_pod("half", annotations=HALF)  # GPU 1, on slot 0
        ledger = node_lab.replica.ledger

        on = {name: placements(ledger, request, [N1], PodUid("new"))[N1] for name, request in ASKED.items()}
        assert {name: as_text(each) for name, each in on.items()} == {
            "half": "fits, on GPU 1",
            "whole": "fits; the kubelet chooses the GPU",
        }
        assert [as_data("n1", each)["gpus"] for each in on.values()] == [[1], [None]]


async def test_people_see_the_numbers_of_gpus_and_never_of_slots() -> None:
    async with a_coexist_node(gpus=3) as node_lab:
        await node_lab.run_pod("half", annotations=HALF)  # GPU 2, on slot 0
        await node_lab.run_pod("whole", limits=WHOLE)  # GPU 1, on slot 1
        await node_lab.reconcile(2)
        await node_lab.kubelet.report_users()
        ledger = node_lab.replica.cluster_ledger
        await eventually(lambda: ledger.users_of(node_lab.kubelet.node.gpus[1]))

        seen = {
            entry.gpu.index: [share.holder.name for share in entry.shares.values()] for entry in shown_gpus(ledger, N1)
        }
        assert seen == {0: [], 1: ["whole"], 2: ["half"]}
        assert [str(entry.gpu) for entry in node_lab.replica.ledger.entries(N1)] == [
            "GPU 2 of n1",
            "GPU 1 of n1",
            "a GPU of n1",
        ]


async def test_under_kais_old_names_a_fraction_gets_its_gpu_and_the_reservation_ends_with_it() -> None:
    async with a_coexist_node() as node_lab:
        lab = node_lab.lab
        await create_reservation_namespace(lab, OLD_RESERVATIONS)
        options = ReservationOptions("kai", BEFORE_KAI_0_17)
        node_lab.replica.reservations = ReservationPods(node_lab.replica, options)
        await node_lab.run_pod("a", annotations=HALF)

        (pod,) = (await lab.client.list(PODS, Selection(OLD_RESERVATIONS))).items
        made = await lab.client.get(PODS, pod.metadata.name, OLD_RESERVATIONS)
        assert re.fullmatch("runai-reservation-gpu-n1-[0-9a-f]{5}", pod.metadata.name)
        assert made["metadata"]["labels"] == {
            "app": "runai-reservation",
            "app.runai.resource.reservation": "runai-reservation-gpu",
            "runai-gpu-group": "gpu-n1-0",
        }
        assert made["spec"]["serviceAccountName"] == "runai-reservation"
        assert made["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"] == await node_lab.gpu_of("a")
        assert await reservation_pods(lab) == [], "none under the new names"

        await node_lab.delete_pod("a")
        lab.clock.now += timedelta(minutes=1)
        await node_lab.reconcile()
        assert (await lab.client.list(PODS, Selection(OLD_RESERVATIONS))).items == []
        assert await lab.held() == {}


async def test_a_gpu_that_the_kubelet_gave_twice_is_named_and_the_free_slots_are_given() -> None:
    """Time-slicing was on when they started. The two count as two GPUs: the kubelet might give the same one again."""
    async with a_coexist_node(gpus=4) as node_lab:
        for name in ("a", "b"):
            await node_lab.run_pod(name, limits={"nvidia.com/gpu": "1"})
        await node_lab.kubelet.work()
        node_lab.kubelet.given = {uid: [GpuUuid("GPU-n1-1")] for uid in node_lab.kubelet.given}
        await node_lab.kubelet.report_users()
        ledger = node_lab.replica.cluster_ledger
        await eventually(lambda: len(shown_gpus(ledger, N1)[1].shares) == 2, "both are shown on their GPU")

        shown = [(entry.gpu.index, entry.gpu.unusable, len(entry.shares)) for entry in shown_gpus(ledger, N1)]
        twice = "the kubelet has given GPU-n1-1 to two pods"
        kept = "it is kept free: the kubelet gave another GPU of n1 twice"
        assert shown == [(0, "", 0), (1, twice, 2), (2, "", 0), (3, kept, 0)]
        assert set_aside(node_lab.replica, N1) == [f"GPU 1 is set aside: {twice}", f"GPU 3 is set aside: {kept}"]

        for name in ("c", "d"):
            await node_lab.run_pod(name, limits={"nvidia.com/gpu": "1"})
        late = await node_lab.lab.pod("e", limits={"nvidia.com/gpu": "1"})
        assert await node_lab.bind(late) is not None

        await node_lab.delete_pod("a")
        await node_lab.reconcile(2)
        await node_lab.kubelet.report_users()
        assert await node_lab.bind(late) is None
