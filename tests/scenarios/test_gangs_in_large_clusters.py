"""With more than 100 nodes kube-scheduler asks about a part of them for each pod: gangs are bound all the same."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from carrel.ids import NodeName
from carrel.kubernetes.cluster import Json, MergePatch
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.kubernetes.transport import ApiRequest, ApiResponse, ResponseLike, Transport
from carrel.ledger.gpus import Node
from carrel.ledger.refusals import Refusal
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.scenarios.test_gangs import HASTY, a_gang, ready

NAMES = tuple(NodeName(f"n{number:03}") for number in range(120))
FIRST, SECOND, THIRD = NAMES[:40], NAMES[40:80], NAMES[80:]


def nodes_with(gpus: int, elsewhere: int, *names: str) -> list[Node]:
    """So many GPUs on the nodes of these names, and so many on each of the others."""
    return [a_node(name, gpus=gpus if name in names else elsewhere) for name in NAMES]


async def nominated(lab: Lab, pod: Json) -> str:
    found = await lab.client.get(PODS, pod["metadata"]["name"], "lab")
    return str(found["status"].get("nominatedNodeName", ""))


def planned(replica: Replica, pod: Json) -> str:
    (node,) = replica.ledger.nodes_held_by(pod["metadata"]["uid"])
    return node


async def wait_nominated(lab: Lab, replica: Replica, *pods: Json) -> None:
    """Each for the node that is planned for it."""
    await eventually(lambda: replica.nominations.are_written)
    assert [await nominated(lab, pod) for pod in pods] == [planned(replica, pod) for pod in pods]


def ask(replica: Replica, pod: Json, nodes: Sequence[NodeName]) -> tuple[list[str], str]:
    """The node that is named, and else the reason."""
    seen = replica.pods.store.get(pod["metadata"]["name"], "lab")
    assert seen is not None
    found = replica.filter(seen, nodes, chooses=True)
    return list(found.fitting), next(iter(found.refused.values()), "")


async def schedule(lab: Lab, replica: Replica, pod: Json, sample: Sequence[NodeName]) -> Refusal | None:
    """As kube-scheduler does: it tries the nominated node alone, then those that it looks at."""
    first = await nominated(lab, pod)
    fitting = ask(replica, pod, [NodeName(first)])[0] if first else []
    fitting, reason = (fitting, "") if fitting else ask(replica, pod, sample)
    return await replica.bind(pod, fitting[0]) if fitting else Refusal(reason)


async def test_members_that_are_asked_about_different_nodes_are_bound_together() -> None:
    async with a_lab(nodes_with(1, 1)) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 3)
        await ready(replica, pods)

        waiting = [asyncio.ensure_future(schedule(lab, replica, pods[0], FIRST))]
        await eventually(lambda: len(list(replica.ledger.holders())) == 3)
        await wait_nominated(lab, replica, pods[1], pods[2])
        waiting += [asyncio.ensure_future(schedule(lab, replica, pods[1], SECOND))]
        waiting += [asyncio.ensure_future(schedule(lab, replica, pods[2], THIRD))]

        assert await asyncio.gather(*waiting) == [None, None, None]
        assert sorted((await lab.bound()).values()) == ["n000", "n001", "n002"]
        replica.ledger.audit()


async def test_the_plan_survives_a_question_that_kube_scheduler_had_begun_before_the_nomination() -> None:
    async with a_lab(nodes_with(1, 1)) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        assert ask(replica, pods[0], FIRST)[0]
        node = planned(replica, pods[1])

        for _ in range(2):
            assert ask(replica, pods[1], SECOND) == (
                [],
                f"gang lab/job planned lab/job-1 on {node}; kube-scheduler tries it there next",
            )

        assert ask(replica, pods[1], [NodeName(node)]) == ([node], "")


async def test_a_pod_is_nominated_and_woken_by_one_write() -> None:
    """If it were woken first, kube-scheduler would look elsewhere; a nomination alone wakes no pod."""
    async with a_lab(nodes_with(1, 1)) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)

        ask(replica, pods[0], FIRST)

        await wait_nominated(lab, replica, pods[1])
        assert "carrel.dev/woken-at" in await lab.annotations("job-1")
        assert [each for each in replica.transport.writes if "/pods/" in each] == [
            "PATCH /api/v1/namespaces/lab/pods/job-1/status"
        ], "the member that was just told its node needs neither"


async def test_of_a_hundred_nodes_all_are_asked_about_and_nobody_is_nominated() -> None:
    names = NAMES[:100]
    async with a_lab([a_node(name, gpus=1) for name in names]) as lab, lab.replica(timeouts=HASTY) as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        assert ask(replica, pods[0], names)[0]

        named, reason = ask(replica, pods[1], names[50:])

        assert not named and "where it may not run now" in reason
        await eventually(lambda: len([each for each in replica.transport.writes if "/pods/" in each]) == 2)
        assert not [each for each in replica.transport.writes if each.endswith("/status")]


async def test_a_member_that_may_not_run_on_its_node_is_planned_elsewhere_at_the_third_question() -> None:
    async with a_lab(nodes_with(1, 1)) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        ask(replica, pods[0], FIRST)

        answers = [ask(replica, pods[1], SECOND)[0] for _ in range(3)]

        assert answers == [[], [], ["n040"]], "by now it is known which nodes suit it"


async def test_members_that_wait_to_be_bound_are_refused_if_another_that_may_not_run_on_its_node_has_room() -> None:
    async with a_lab(nodes_with(1, 1)) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        waiting = asyncio.ensure_future(schedule(lab, replica, pods[0], FIRST))
        await eventually(lambda: len(list(replica.ledger.holders())) == 2)
        node = planned(replica, pods[1])

        for _ in range(3):
            ask(replica, pods[1], SECOND)

        refusal = await waiting
        assert refusal is not None and f"could not be bound to {node}" in refusal.reason
        await wait_nominated(lab, replica, pods[0])
        binds = (schedule(lab, replica, pods[0], THIRD), replica.bind(pods[1], "n040"))
        assert [*await asyncio.gather(*binds)] == [None, None], "no back-off"


async def test_free_nodes_that_no_question_has_together_are_found() -> None:
    """All but three nodes have one GPU, and the members need two."""
    async with a_lab(nodes_with(2, 1, "n005", "n070", "n110")) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 3, gpus=2)
        await ready(replica, pods)

        ask(replica, pods[0], NAMES[10:60])
        assert {planned(replica, pod) for pod in pods} == {"n005", "n070", "n110"}

        await wait_nominated(lab, replica, *pods)
        assert await asyncio.gather(*(schedule(lab, replica, pod, NAMES[10:60]) for pod in pods)) == [None] * 3
        assert sorted((await lab.bound()).values()) == ["n005", "n070", "n110"]


async def test_a_node_where_a_member_failed_is_left_out_although_no_other_was_in_the_question() -> None:
    async with a_lab(nodes_with(2, 1, "n005", "n070", "n110")) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2, gpus=2)
        await ready(replica, pods)
        ask(replica, pods[0], NAMES[:75])
        node = planned(replica, pods[0])

        ask(replica, pods[0], [NodeName(node)])  # it was told the node already, and was not bound there

        assert planned(replica, pods[0]) != node


async def test_the_reason_counts_the_room_of_all_nodes() -> None:
    async with a_lab(nodes_with(2, 1, "n005", "n070", "n110")) as lab, lab.replica() as replica:
        other = await lab.pod("other", limits={"nvidia.com/gpu": "2"})
        assert await replica.bind(other, "n110") is None
        pods = await a_gang(lab, "job", 3, gpus=2)
        await ready(replica, pods)

        assert ask(replica, pods[0], THIRD) == (
            [],
            "gang lab/job has room for 2 of its 3 members; all or none are placed",
        )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        pytest.param({"spec": {"unschedulable": True}}, "", id="cordoned"),
        pytest.param({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, "", id="tainted"),
        pytest.param({"status": {"allocatable": {"cpu": "1"}}}, "status", id="no CPU left"),
    ],
)
async def test_nobody_is_planned_on_a_node_outside_the_question_where_carrel_knows_that_it_may_not_run(
    change: Json, what: str
) -> None:
    async with a_lab(nodes_with(2, 1, "n005", "n070", "n110")) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2, gpus=2)
        for pod in pods:
            await lab.client.delete(PODS, pod["metadata"]["name"], "lab")
        wants_cpu = [{"name": "main", "image": "work", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]
        pods = [
            await lab.pod(f"cpu-{number}", annotations={"gpu.scheduling/claim": "job"}, containers=wants_cpu)
            for number in range(2)
        ]
        await ready(replica, pods)
        await eventually(lambda: len(replica.pods.store) == 2)
        changed = await lab.client.patch(NODES, "n005", MergePatch(change), subresource=what)
        version = changed["metadata"]["resourceVersion"]
        await eventually(
            lambda: (node := replica.nodes.store.get("n005")) and node.metadata.resource_version == version
        )

        ask(replica, pods[0], THIRD)

        assert {planned(replica, pod) for pod in pods} == {"n070", "n110"}


class WithoutStatus:
    """An API server that lets nobody write the status of a pod: the role is that of an earlier release."""

    def __init__(self, api: Transport) -> None:
        self.api = api

    async def send(self, request: ApiRequest) -> ResponseLike:
        if request.method == "PATCH" and request.path.endswith("/status"):
            body = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no right", "code": 403}
            return ApiResponse(403, msgspec.json.encode(body))
        return await self.api.send(request)

    async def aclose(self) -> None:
        await self.api.aclose()


async def test_members_that_cannot_be_nominated_are_woken_and_bound_where_their_questions_allow_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_lab(nodes_with(1, 1)) as lab, lab.replica(WithoutStatus(lab.api)) as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        waiting = asyncio.ensure_future(schedule(lab, replica, pods[0], FIRST))
        await eventually(lambda: "PATCH /api/v1/namespaces/lab/pods/job-1" in replica.transport.writes)
        assert "pod_not_nominated pod=lab/job-1" in caplog.text

        assert await schedule(lab, replica, pods[1], FIRST) is None
        assert await waiting is None


async def test_nominations_are_withdrawn_with_the_plan_except_what_others_have_nominated() -> None:
    """kube-scheduler leaves CPU and memory to a pod where it is nominated."""
    async with a_lab(nodes_with(1, 1)) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 4)
        await ready(replica, pods)
        ask(replica, pods[0], FIRST)
        await wait_nominated(lab, replica, *pods[1:])
        others = MergePatch({"status": {"nominatedNodeName": "n077"}})
        await lab.client.patch(PODS, "job-2", others, "lab", subresource="status")

        await lab.client.delete(PODS, "job-3", "lab")

        await eventually(lambda: not list(replica.ledger.holders()))
        await eventually(lambda: replica.nominations.are_written)
        assert [await nominated(lab, pod) for pod in pods[1:3]] == ["", "n077"]


async def test_a_plan_that_follows_at_once_leaves_its_own_nominations() -> None:
    async with a_lab(nodes_with(1, 1)) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        ask(replica, pods[0], FIRST)
        await wait_nominated(lab, replica, pods[1])

        assert ask(replica, pods[0], SECOND)[0], "it was not bound where it was told, so all are planned again"

        await wait_nominated(lab, replica, pods[1])
