"""Who reaches `bind` can do no more than kube-scheduler would: attacks on other people's pods and nodes."""

import json
from typing import Any

import pytest

from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.kubernetes.store import Store
from carrel.scheduling.assembly import SchedulerOptions, handlers_on
from carrel.scheduling.bind_check import BindCheck
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, Replica, a_lab

CORDONED = {"spec": {"unschedulable": True}}
TAINTED = {"spec": {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}}
GONE_SOON = {"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}}


async def bind(replica: Replica, pod: Json, node: str = "n1", options: SchedulerOptions | None = None) -> str:
    """The error; empty if bound."""
    handlers = handlers_on(replica, replica.scheduler, options or SchedulerOptions())
    meta = pod["metadata"]
    body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
    return str(json.loads((await handlers.bind(json.dumps(body).encode())).body)["Error"])


async def a_pod(lab: Lab, name: str = "train", **spec: Any) -> Json:
    container = {"name": "main", "image": "work", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    whole = {"schedulerName": "gpu-scheduler", "containers": [container], **spec}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}
    return await lab.client.create(PODS, body, "lab")


@pytest.mark.parametrize(
    ("node", "spec", "why"),
    [
        pytest.param(
            CORDONED, {}, "which is cordoned (kubectl uncordon n1); the pod does not tolerate that", id="cordoned"
        ),
        pytest.param(TAINTED, {}, "which is tainted team=a:NoSchedule; the pod does not tolerate that", id="tainted"),
        pytest.param(GONE_SOON, {}, "node.kubernetes.io/out-of-service:NoExecute", id="pods are evicted there"),
        pytest.param({}, {"nodeSelector": {"team": "b"}}, "node selector or affinity excludes", id="selected another"),
        pytest.param({}, {"schedulerName": "default-scheduler"}, "belongs to the scheduler", id="of another scheduler"),
    ],
)
async def test_a_bind_that_kube_scheduler_would_not_make_is_refused(node: Json, spec: Json, why: str) -> None:
    async with a_lab([a_node("n1")]) as lab:
        await lab.client.patch(NODES, "n1", MergePatch(node))
        async with lab.replica() as replica:
            pod = await a_pod(lab, **spec)

            assert why in await bind(replica, pod)
            assert await lab.bound() == {} and await lab.held() == {}


@pytest.mark.parametrize(
    ("node", "tolerated"),
    [
        pytest.param(CORDONED, {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}, id="cordoned"),
        pytest.param(TAINTED, {"key": "team", "value": "a"}, id="tainted"),
    ],
)
async def test_what_a_pod_tolerates_does_not_stop_it(node: Json, tolerated: Json) -> None:
    async with a_lab([a_node("n1")]) as lab:
        await lab.client.patch(NODES, "n1", MergePatch(node))
        async with lab.replica() as replica:
            pod = await a_pod(lab, tolerations=[tolerated])
            await replica.sees(pod)

            assert await bind(replica, pod) == ""


async def test_pods_of_peers_and_of_schedulers_that_are_named_are_bound() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        of_kai = await a_pod(lab, "of-kai", schedulerName="kai-scheduler")
        of_default = await a_pod(lab, "of-default", schedulerName="default-scheduler")
        await replica.sees(of_default)

        assert await bind(replica, of_kai) == ""
        also = SchedulerOptions(schedulers=frozenset({"default-scheduler"}))
        assert await bind(replica, of_default, options=also) == ""


async def test_a_pod_that_is_bound_or_is_going_is_not_moved() -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab, lab.replica() as replica:
        bound, going = await a_pod(lab, "bound"), await a_pod(lab, "going", terminationGracePeriodSeconds=60)
        assert await bind(replica, bound) == ""
        await eventually(lambda: (pod := replica.pods.store.by_uid(bound["metadata"]["uid"])) and pod.spec.node_name)
        assert "is bound to n1 already" in await bind(replica, bound, "n2")

        finalized = MergePatch({"metadata": {"finalizers": ["lab.example/keep"]}})
        await lab.client.patch(PODS, "going", finalized, "lab")
        await lab.client.delete(PODS, "going", "lab", how=DeleteOptions(grace_seconds=0))
        uid = going["metadata"]["uid"]
        await eventually(lambda: (pod := replica.pods.store.by_uid(uid)) and pod.metadata.deletion_timestamp)
        assert "is being deleted" in await bind(replica, going)
        assert list((await lab.bound()).values()) == ["n1"]


async def test_a_node_is_refused_only_after_the_api_server_was_asked() -> None:
    """The cache may be behind kube-scheduler's, which has seen that the node may be used again."""
    async with a_lab([a_node("n1")]) as lab:
        await lab.client.patch(NODES, "n1", MergePatch(CORDONED))
        async with lab.replica() as replica:
            pod = await a_pod(lab)
            await replica.sees(pod)
            known = replica.nodes.store.get("n1")
            assert known is not None and known.spec.unschedulable
            await lab.client.patch(NODES, "n1", MergePatch({"spec": {"unschedulable": False}}))
            stale: Store[NodeObject] = Store()
            stale.put(known)
            as_it_was = BindCheck(replica.cluster, replica.pods.store, stale, None)

            assert await as_it_was.why_not(await replica.sees(pod), N1) is None
