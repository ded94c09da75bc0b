"""Events say why a pod waits and which GPUs it got: once, also after crashes and by another leader."""

from datetime import timedelta

import pytest

from carrel.dialects.kai import without_effect
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch, OutcomeUnknown, Selection
from carrel.kubernetes.objects.events import Note
from carrel.kubernetes.objects.resources import EVENTS, NAMESPACES, NODES, PODS
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.reporting.pod_events import (
    EventRate,
    PodEventWriter,
    assigned_note,
    waiting_note,
    without_gpu_note,
)
from kubernetes_in_memory.faults import Crashed, FaultPlan
from tests.kit.eventually import eventually
from tests.kit.faults import Faulty
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.objects import pod as object_pod

GPU_MEM = {"aliyun.com/gpu-mem": "8138"}
NO_ROOM = waiting_note(Refusal("none of 2 nodes has 8,138 MiB on one GPU"))
LESS_ROOM = waiting_note(Refusal("there is no node for 8,138 MiB on one GPU"))


def teller(lab: Lab, replica: Replica, allowance: EventRate | None = None) -> PodEventWriter:
    return PodEventWriter(replica.cluster, lab.clock, allowance or EventRate())


async def told(lab: Lab) -> dict[str, int]:
    """Message → how often."""
    return {event.message: event.count for event in (await lab.client.list(EVENTS, Selection("lab"))).items}


async def test_an_event_about_the_pod_says_why_it_waits() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        other = await lab.pod("other", limits={"nvidia.com/gpu": "1"})
        assert await replica.bind(other, "n1") is None
        pod = await replica.sees(await lab.pod("train", limits=GPU_MEM))
        why = replica.waiting_reason.why(pod)
        assert why is not None

        assert await teller(lab, replica).tell(pod, waiting_note(why))

        (event,) = (await lab.client.list(EVENTS, Selection("lab"))).items
        whole = await lab.client.get(EVENTS, event.metadata.name, "lab")
        assert whole["message"] == f"this pod waits for a GPU: {why.reason}"
        assert (whole["reason"], whole["type"], whole["count"]) == ("WaitingForGPU", "Warning", 1)
        assert whole["source"] == {"component": "carrel-controller"}
        assert whole["involvedObject"] == {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "lab",
            "name": "train",
            "uid": pod.metadata.uid,
        }
        assert whole["firstTimestamp"] == whole["lastTimestamp"] == "2026-11-16T12:00:00Z"


async def test_a_reason_is_written_once_and_again_when_it_changes() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=GPU_MEM))
        telling = teller(lab, replica)
        answers = []
        for note in (NO_ROOM, NO_ROOM, LESS_ROOM, LESS_ROOM, NO_ROOM):
            answers.append(await telling.tell(pod, note))
            lab.clock.now += timedelta(seconds=20)

        assert answers == [True, False, True, False, True]
        assert await told(lab) == {NO_ROOM.message: 2, LESS_ROOM.message: 1}


async def test_who_holds_the_gpus_is_told_with_the_reason_and_makes_no_event_of_its_own() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as first, lab.replica() as second:
        body = await lab.pod("train", limits=GPU_MEM)
        telling = teller(lab, first)
        assert await telling.tell(await first.sees(body), NO_ROOM, lambda: "GPU 0 of n1 by lab/a")
        lab.clock.now += timedelta(seconds=60)

        assert not await telling.tell(await first.sees(body), NO_ROOM, lambda: "GPU 0 of n1 by lab/b")
        assert not await teller(lab, second).tell(await second.sees(body), NO_ROOM, lambda: "GPU 0 of n1 by lab/b")

        assert await told(lab) == {f"{NO_ROOM.message}; held: GPU 0 of n1 by lab/a": 1}


async def test_that_a_pod_runs_without_its_gpu_is_told_once_whoever_leads() -> None:
    without = {"carrel.dev/runs-without-gpu": "this pod runs without a GPU: none was free"}
    async with a_lab([a_node("n1")]) as lab, lab.replica() as first, lab.replica() as second:
        body = await lab.pod("notebook", annotations=without)
        note = without_gpu_note(await first.sees(body), lab.clock.now)
        assert note == Note("RunsWithoutGPU", "this pod runs without a GPU: none was free", "Warning")

        assert await teller(lab, first).tell(await first.sees(body), note)
        for replica in (first, second):
            assert not await teller(lab, replica).tell(await replica.sees(body), note)

        assert await told(lab) == {"this pod runs without a GPU: none was free": 1}
        # Kubernetes deletes Events after an hour; then nobody can tell whether there was one.
        assert without_gpu_note(await second.sees(body), lab.clock.now + timedelta(hours=1)) is None


async def test_another_leader_does_not_repeat_an_event() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as first, lab.replica() as second:
        body = await lab.pod("train", limits=GPU_MEM)
        await teller(lab, first).tell(await first.sees(body), NO_ROOM)
        lab.clock.now += timedelta(seconds=60)

        assert not await teller(lab, second).tell(await second.sees(body), NO_ROOM)
        assert await teller(lab, second).tell(await second.sees(body), LESS_ROOM)


async def test_a_pod_of_the_same_name_is_another_pod() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        telling = teller(lab, replica)
        for _ in range(2):
            pod = await replica.sees(await lab.pod("train", limits=GPU_MEM))
            assert await telling.tell(pod, NO_ROOM)
            await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))

        assert len((await lab.client.list(EVENTS, Selection("lab"))).items) == 2


async def test_a_reason_that_changes_all_the_time_is_written_at_intervals() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=GPU_MEM))
        telling = teller(lab, replica)
        for second in range(60):
            await telling.tell(pod, waiting_note(Refusal(f"GPU 0 has {second} MiB free")))
            lab.clock.now += timedelta(seconds=1)

        assert sorted(await told(lab)) == [
            f"this pod waits for a GPU: GPU 0 has {each} MiB free" for each in (0, 15, 30, 45)
        ]


async def test_a_reason_that_stays_true_is_written_again_before_kubernetes_deletes_it() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=GPU_MEM))
        telling = teller(lab, replica)
        await telling.tell(pod, NO_ROOM)
        lab.clock.now += timedelta(minutes=31)

        assert await telling.tell(pod, NO_ROOM)

        assert await told(lab) == {NO_ROOM.message: 2}


async def test_events_about_many_pods_are_written_at_a_limited_rate() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pods = [await replica.sees(await lab.pod(f"train-{number}", limits=GPU_MEM)) for number in range(10)]
        telling = teller(lab, replica, EventRate(per_s=2, burst=4))

        assert sum([await telling.tell(pod, NO_ROOM) for pod in pods]) == 4
        lab.clock.now += timedelta(seconds=1)
        assert sum([await telling.tell(pod, NO_ROOM) for pod in pods]) == 2
        lab.clock.now += timedelta(seconds=60)
        assert sum([await telling.tell(pod, NO_ROOM) for pod in pods]) == 4


async def test_a_crash_right_after_the_event_does_not_repeat_it() -> None:
    async with a_lab([a_node("n1")]) as lab:
        body = await lab.pod("train", limits=GPU_MEM)
        async with lab.replica(Faulty(lab.api, FaultPlan(seed=1, crash_after_write=1))) as dies:
            with pytest.raises(Crashed):
                await teller(lab, dies).tell(await dies.sees(body), NO_ROOM)

        lab.clock.now += timedelta(seconds=60)
        async with lab.replica() as replica:
            assert not await teller(lab, replica).tell(await replica.sees(body), NO_ROOM)

        assert await told(lab) == {NO_ROOM.message: 1}


async def test_an_event_whose_answer_was_lost_is_looked_up_and_not_repeated() -> None:
    async with a_lab([a_node("n1")]) as lab:
        body = await lab.pod("train", limits=GPU_MEM)
        async with lab.replica(Faulty(lab.api, FaultPlan(seed=1, lose_answer=1.0))) as replica:
            telling, pod = teller(lab, replica), await replica.sees(body)
            with pytest.raises(OutcomeUnknown):
                await telling.tell(pod, NO_ROOM)
            lab.clock.now += timedelta(seconds=60)
            assert not await telling.tell(pod, NO_ROOM)

        assert await told(lab) == {NO_ROOM.message: 1}


async def test_a_placed_pod_gets_one_event_with_its_gpus() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica, lab.replica() as other:
        body = await lab.pod("train", limits=GPU_MEM)
        note = await _assigned(lab, replica, body)
        assert note == Note("GPUAssigned", "this pod got GPU 0 of n1, 8,138 MiB")
        bound = await replica.sees(await lab.client.get(PODS, "train", "lab"))

        assert await teller(lab, replica).tell(bound, note)
        lab.clock.now += timedelta(hours=1)
        await teller(lab, other).tell(bound, note)

        assert await told(lab) == {"this pod got GPU 0 of n1, 8,138 MiB": 1}


async def test_whole_gpus_are_shown_as_whole_and_in_order() -> None:
    async with a_lab([a_node("n1", gpus=12)]) as lab, lab.replica() as replica:
        body = await lab.pod("train", limits={"nvidia.com/gpu": "12"})

        note = await _assigned(lab, replica, body)

        assert note is not None
        assert note.message.startswith("this pod got GPU 0, GPU 1, GPU 2")


async def test_a_pod_that_was_placed_long_ago_gets_no_event() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        body = await lab.pod("train", limits=GPU_MEM)

        assert await _assigned(lab, replica, body, later=timedelta(minutes=11)) is None


async def test_eligible_nodes_match_the_selector_and_are_schedulable() -> None:
    async with a_lab([a_node("n1"), a_node("n2"), a_node("n3")]) as lab, lab.replica() as replica:
        await lab.client.patch(NODES, "n1", MergePatch({"metadata": {"labels": {"zone": "a"}}}))
        await lab.client.patch(NODES, "n2", MergePatch({"metadata": {"labels": {"zone": "a"}}}))
        await lab.client.patch(NODES, "n2", MergePatch({"spec": {"unschedulable": True}}))
        await eventually(lambda: (node := replica.nodes.store.get("n2")) and node.spec.unschedulable)
        anywhere = object_pod(node_selector={})
        zone_a = object_pod(node_selector={"zone": "a"})

        assert (replica.eligible_nodes.nodes_for(anywhere), replica.eligible_nodes.nodes_for(zone_a)) == (
            ("n1", "n3"),
            ("n1",),
        )


async def test_the_reason_names_taints_that_the_pod_does_not_tolerate_and_how_many_nodes_have_them() -> None:
    nodes = [a_node("n1", gpus=1, memory=4000), a_node("n2"), a_node("n3")]
    async with a_lab(nodes) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=GPU_MEM))
        assert replica.waiting_reason.why(pod) is None
        taints = [{"key": "dedicated", "value": "team-a", "effect": "NoSchedule"}]
        for node in ("n2", "n3"):
            await lab.client.patch(NODES, node, MergePatch({"spec": {"taints": taints}}))

        why = await eventually(lambda: replica.waiting_reason.why(pod), "the taints are seen")

        assert why is not None
        assert why.reason == (
            "GPU 0 of n1 has 4,000 MiB in all, 8,138 MiB asked;"
            " 2 nodes have a taint that the pod does not tolerate: dedicated=team-a:NoSchedule"
        )
        await lab.client.patch(NODES, "n2", MergePatch({"spec": {"taints": []}}))
        await eventually(lambda: replica.waiting_reason.why(pod) is None, "it may go to n2 again")


async def _assigned(lab: Lab, replica: Replica, body: Json, later: timedelta = timedelta()) -> Note | None:
    """The note about the GPUs of a bound pod."""
    assert await replica.bind(body, "n1") is None
    pod = await replica.sees(await lab.client.get(PODS, body["metadata"]["name"], "lab"))
    leases = replica.cluster_ledger.leases_of(pod.metadata.uid)
    return assigned_note(pod, leases, lab.clock.now + later)


@pytest.mark.parametrize(
    ("members", "why"),
    [
        pytest.param(1, "gang lab/g waits for 2 more members: 1 of 3 are here", id="too few"),
        pytest.param(3, "gang lab/g has room for 2 of its 3 members; all or none are placed", id="too little room"),
    ],
)
async def test_the_event_of_a_gang_member_says_what_the_gang_waits_for(members: int, why: str) -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab, lab.replica() as replica:
        other = await lab.pod("other", limits={"nvidia.com/gpu": "1"})
        assert await replica.bind(other, "n1") is None
        gang = {"pod-group-name": "g", "carrel.dev/gang-size": "3", "carrel.dev/gpu-count": "1"}
        pods = [await replica.sees(await lab.pod(f"member-{each}", annotations=gang)) for each in range(members)]

        refusal = replica.waiting_reason.why(pods[0])

        assert refusal is not None
        assert refusal.reason == why
        assert list(replica.ledger.holders()) == [other["metadata"]["uid"]], "to ask changes nothing"


async def test_no_event_is_written_in_a_namespace_that_is_being_deleted() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=GPU_MEM))
        # A bound pod delays the deletion of its namespace until its kubelet has ended it.
        assert await replica.scheduler.bind(pod, N1) is None
        await lab.client.delete(NAMESPACES, "lab")

        assert not await teller(lab, replica).tell(pod, NO_ROOM)


async def test_words_of_kai_without_effect_are_told_once_in_a_namespace() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        labels = {"kai.scheduler/queue": "vision", "priorityClassName": "train"}
        newer = {"kai.scheduler/preemption-delay": "5m", "kai.scheduler/staleness-grace-period": "1m"}
        telling = teller(lab, replica)
        told_about = []
        for name in ("a", "b"):
            made = await lab.pod(name, annotations={"gpu-fraction": "0.5", **newer}, labels=labels)
            pod = await replica.sees(made)
            told_about.append(await telling.tell_without_effect(pod, without_effect(pod)))
            assert await telling.tell(pod, NO_ROOM), "it does not hold back why the pod waits"
        ordinary = await replica.sees(await lab.pod("c", annotations={"gpu-fraction": "0.5"}))

        assert told_about == [True, False]
        assert not await telling.tell_without_effect(ordinary, without_effect(ordinary))
        assert any(
            message.startswith(
                "kai.scheduler/queue, priorityClassName, kai.scheduler/preemption-delay,"
                " kai.scheduler/staleness-grace-period have no effect in this namespace"
            )
            for message in await told(lab)
        )
