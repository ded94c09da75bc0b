"""What the API adds to pods, and its two verbs on them: binding and eviction."""

import pytest

from packages.kubernetes_in_memory.tests.integration.caller import MERGE, PODS, Caller, Json, pod

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def binding(**metadata: object) -> Json:
    return {"metadata": {"name": "train", **metadata}, "target": {"kind": "Node", "name": "n1"}}


async def test_binding_is_one_change_with_node_annotations_and_condition(call: Caller) -> None:
    made = await call.made(PODS, pod())
    async with call.watching(PODS, resourceVersion=made["metadata"]["resourceVersion"]) as events:
        await call.made(f"{PODS}/train/binding", binding(uid=made["metadata"]["uid"], annotations={"gpu": "0"}))
        event = await events.next()
        await call.made("/api/v1/namespaces/default/pods", pod("other"))
        assert (await events.next())["object"]["metadata"]["name"] == "other"
    assert event["type"] == "MODIFIED"
    bound = event["object"]
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"gpu": "0"}
    assert [(one["type"], one["status"]) for one in bound["status"]["conditions"]] == [("PodScheduled", "True")]


async def test_a_pod_is_bound_once(call: Caller) -> None:
    await call.made(PODS, pod())
    await call.made(f"{PODS}/train/binding", binding())
    answer = await call("POST", f"{PODS}/train/binding", binding())
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")
    assert 'pod train is already assigned to node "n1"' in answer.message


async def test_a_binding_for_another_pod_of_the_same_name_is_a_conflict(call: Caller) -> None:
    await call.made(PODS, pod())
    assert (await call("POST", f"{PODS}/train/binding", binding(uid="another"))).status == 409


async def test_a_pod_with_scheduling_gates_cannot_be_bound(call: Caller) -> None:
    await call.made(PODS, pod(schedulingGates=[{"name": "library.example/wait"}]))
    assert (await call("POST", f"{PODS}/train/binding", binding())).status == 409


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"target": {}}, id="no node"),
        pytest.param({"target": {"kind": "Desk", "name": "d"}}, id="not to a node"),
        pytest.param({"kind": "Pod"}, id="not a binding"),
        pytest.param({"metadata": {"name": "other"}}, id="another name"),
    ],
)
async def test_a_malformed_binding_binds_nothing(call: Caller, wrong: Json) -> None:
    await call.made(PODS, pod())
    assert (await call("POST", f"{PODS}/train/binding", {**binding(), **wrong})).status in (400, 422)
    assert "nodeName" not in (await call("GET", f"{PODS}/train")).body["spec"]


async def running(call: Caller) -> None:
    await call.made(PODS, pod(labels={"app": "train"}))
    await call.made(f"{PODS}/train/binding", binding())
    await call("PATCH", f"{PODS}/train/status", {"status": {"phase": "Running"}}, MERGE)


async def budget(call: Caller, allowed: int) -> None:
    await call.made(BUDGETS, {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "train"}}}})
    await call("PATCH", f"{BUDGETS}/b/status", {"status": {"disruptionsAllowed": allowed}}, MERGE)


class TestEviction:
    async def test_is_a_graceful_deletion(self, call: Caller) -> None:
        await running(call)
        await call.made(
            f"{PODS}/train/eviction", {"metadata": {"name": "train"}, "deleteOptions": {"gracePeriodSeconds": 7}}
        )
        assert (await call("GET", f"{PODS}/train")).body["metadata"]["deletionGracePeriodSeconds"] == 7

    async def test_needs_an_eviction_of_policy_v1(self, call: Caller) -> None:
        """kube-apiserver 1.37 still takes v1beta1; nothing that runs on the embedded API says it any more."""
        await running(call)
        old = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "train"}}
        answer = await call("POST", f"{PODS}/train/eviction", old)
        assert (answer.status, "policy/v1" in answer.message) == (400, True)
        assert "deletionTimestamp" not in (await call("GET", f"{PODS}/train")).body["metadata"]

    async def test_waits_while_the_budget_allows_none(self, call: Caller) -> None:
        await running(call)
        await budget(call, 0)
        answer = await call("POST", f"{PODS}/train/eviction", {"metadata": {"name": "train"}})
        assert (answer.status, answer.body["reason"]) == (429, "TooManyRequests")
        assert "deletionTimestamp" not in (await call("GET", f"{PODS}/train")).body["metadata"]

    async def test_uses_up_the_budget(self, call: Caller) -> None:
        await running(call)
        await budget(call, 1)
        await call.made(f"{PODS}/train/eviction", {"metadata": {"name": "train"}})
        assert (await call("GET", f"{BUDGETS}/b")).body["status"]["disruptionsAllowed"] == 0

    async def test_changes_nothing_in_a_dry_run(self, call: Caller) -> None:
        await running(call)
        await budget(call, 1)
        await call.made(f"{PODS}/train/eviction", {"metadata": {"name": "train"}}, dryRun="All")
        assert (await call("GET", f"{BUDGETS}/b")).body["status"]["disruptionsAllowed"] == 1
        assert "deletionTimestamp" not in (await call("GET", f"{PODS}/train")).body["metadata"]


class TestPriority:
    async def test_comes_from_the_class(self, call: Caller) -> None:
        await call.made(CLASSES, {"metadata": {"name": "booked"}, "value": 1000})
        assert (await call.made(PODS, pod(priorityClassName="booked")))["spec"]["priority"] == 1000

    async def test_is_the_default_classes_without_a_name(self, call: Caller) -> None:
        await call.made(CLASSES, {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True})
        made = await call.made(PODS, pod())
        assert (made["spec"]["priority"], made["spec"]["priorityClassName"]) == (5, "usual")

    async def test_of_an_unknown_class_is_refused(self, call: Caller) -> None:
        answer = await call("POST", PODS, pod(priorityClassName="none"))
        assert (answer.status, "no PriorityClass with name none" in answer.message) == (403, True)

    async def test_cannot_be_set_by_the_user(self, call: Caller) -> None:
        assert (await call("POST", PODS, pod(priority=9))).status == 403


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        pytest.param({}, "BestEffort", id="nothing asked"),
        pytest.param({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed", id="limits only"),
        pytest.param({"requests": {"cpu": "1"}}, "Burstable", id="a request"),
    ],
)
async def test_the_quality_of_service_is_in_the_status(call: Caller, resources: Json, quality: str) -> None:
    made = await call.made(PODS, pod(containers=[{"name": "a", "image": "b", "resources": resources}]))
    assert made["status"]["qosClass"] == quality


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1", "IfNotPresent"),
        ("r:5000/a@sha256:0", "IfNotPresent"),
    ],
)
async def test_an_image_that_may_change_is_always_pulled(call: Caller, image: str, policy: str) -> None:
    made = await call.made(PODS, pod(containers=[{"name": "a", "image": image}]))
    assert made["spec"]["containers"][0]["imagePullPolicy"] == policy


async def test_a_new_pod_has_no_status_of_its_own(call: Caller) -> None:
    made = await call.made(PODS, {**pod(), "status": {"phase": "Running", "podIP": "10.0.0.1"}})
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
