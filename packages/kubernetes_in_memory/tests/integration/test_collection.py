"""What goes because something else goes: dependents, the content of a namespace, the objects of a CRD."""

from typing import Any

import pytest

from packages.kubernetes_in_memory.tests.integration.caller import MERGE, PODS, Caller, Json, config_map, names, pod

MAPS = "/api/v1/namespaces/default/configmaps"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def owned(name: str, *owners: Json, **changes: Any) -> Json:
    references = [
        {
            "apiVersion": o["apiVersion"],
            "kind": o["kind"],
            "name": o["metadata"]["name"],
            "uid": o["metadata"]["uid"],
            **changes,
        }
        for o in owners
    ]
    return config_map(name, ownerReferences=references)


async def bind(call: Caller, name: str = "train") -> None:
    answer = await call("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": {"name": "n1"}})
    assert answer.status == 201


async def test_dependents_are_deleted_with_their_owner_and_so_are_their_own(call: Caller) -> None:
    owner = await call.made(PODS, pod())
    child = await call.made(MAPS, owned("child", owner))
    await call.made(MAPS, owned("grandchild", child))
    await call.made(MAPS, config_map("stranger"))
    await call("DELETE", f"{PODS}/train")
    assert names(await call("GET", MAPS)) == ["stranger"]


async def test_a_dependent_stays_while_one_owner_is_left(call: Caller) -> None:
    one, two = await call.made(PODS, pod("one")), await call.made(PODS, pod("two"))
    await call.made(MAPS, owned("child", one, two))
    await call("DELETE", f"{PODS}/one")
    child = await call("GET", f"{MAPS}/child")
    assert [owner["name"] for owner in child.body["metadata"]["ownerReferences"]] == ["two"]
    await call("DELETE", f"{PODS}/two")
    assert (await call("GET", f"{MAPS}/child")).status == 404


async def test_orphans_stay_without_their_owner(call: Caller) -> None:
    owner = await call.made(PODS, pod())
    await call.made(MAPS, owned("child", owner))
    await call("DELETE", f"{PODS}/train", propagationPolicy="Orphan")
    assert (await call("GET", f"{PODS}/train")).status == 404
    assert "ownerReferences" not in (await call("GET", f"{MAPS}/child")).body["metadata"]


async def test_in_the_foreground_the_owner_waits_for_those_that_block_it(call: Caller) -> None:
    owner = await call.made(MAPS, config_map("owner"))
    child = owned("child", owner, blockOwnerDeletion=True)
    child["metadata"]["finalizers"] = ["library.example/hold"]
    await call.made(MAPS, child)
    answer = await call("DELETE", f"{MAPS}/owner", propagationPolicy="Foreground")
    assert answer.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert "deletionTimestamp" in (await call("GET", f"{MAPS}/child")).body["metadata"]
    assert (await call("GET", f"{MAPS}/owner")).status == 200
    await call("PATCH", f"{MAPS}/child", {"metadata": {"finalizers": None}}, MERGE)
    assert names(await call("GET", MAPS)) == []


async def test_an_object_created_for_a_deleted_owner_is_deleted(call: Caller) -> None:
    owner = await call.made(PODS, pod())
    await call("DELETE", f"{PODS}/train")
    await call.made(MAPS, owned("late", owner))
    assert (await call("GET", f"{MAPS}/late")).status == 404


async def test_the_same_name_with_another_uid_is_not_the_owner(call: Caller) -> None:
    owner = await call.made(PODS, pod())
    await call.made(MAPS, owned("child", owner))
    await call("DELETE", f"{PODS}/train")
    again = await call.made(PODS, pod())
    assert again["metadata"]["uid"] != owner["metadata"]["uid"]
    assert (await call("GET", f"{MAPS}/child")).status == 404


class TestANamespace:
    async def test_is_deleted_with_its_content(self, call: Caller) -> None:
        await call.made("/api/v1/namespaces", {"metadata": {"name": "lab"}})
        await call.made("/api/v1/namespaces/lab/configmaps", config_map())
        await call.made("/api/v1/namespaces/lab/pods", pod())
        answer = await call("DELETE", "/api/v1/namespaces/lab")
        assert answer.body["status"]["phase"] == "Terminating"
        assert (await call("GET", "/api/v1/namespaces/lab")).status == 404
        assert (await call("GET", "/api/v1/configmaps")).body["items"] == []

    async def test_waits_for_a_pod_that_a_kubelet_runs_and_accepts_no_new_objects(self, call: Caller) -> None:
        await call.made("/api/v1/namespaces", {"metadata": {"name": "lab"}})
        pods = "/api/v1/namespaces/lab/pods"
        await call.made(pods, pod())
        await call("POST", f"{pods}/train/binding", {"metadata": {"name": "train"}, "target": {"name": "n1"}})
        await call("DELETE", "/api/v1/namespaces/lab")
        assert (await call("GET", "/api/v1/namespaces/lab")).body["status"]["phase"] == "Terminating"
        refused = await call("POST", pods, pod("late"))
        assert (refused.status, refused.body["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
        await call("DELETE", f"{pods}/train", {"gracePeriodSeconds": 0})
        assert (await call("GET", "/api/v1/namespaces/lab")).status == 404


class TestABoundPod:
    async def test_has_a_grace_period_and_ends_when_the_kubelet_says_so(self, call: Caller) -> None:
        await call.made(PODS, pod(terminationGracePeriodSeconds=5))
        await bind(call)
        marked = (await call("DELETE", f"{PODS}/train")).body["metadata"]
        assert marked["deletionTimestamp"] == "2026-03-01T12:00:05Z"
        assert marked["deletionGracePeriodSeconds"] == 5
        assert (await call("DELETE", f"{PODS}/train", {"gracePeriodSeconds": 0})).status == 200
        assert (await call("GET", f"{PODS}/train")).status == 404

    async def test_the_grace_period_can_be_shortened_but_not_extended(self, call: Caller) -> None:
        await call.made(PODS, pod())
        await bind(call)
        await call("DELETE", f"{PODS}/train")
        shorter = (await call("DELETE", f"{PODS}/train", {"gracePeriodSeconds": 10})).body["metadata"]
        assert (shorter["deletionGracePeriodSeconds"], shorter["deletionTimestamp"]) == (10, "2026-03-01T12:00:10Z")
        longer = (await call("DELETE", f"{PODS}/train", {"gracePeriodSeconds": 60})).body["metadata"]
        assert longer["deletionGracePeriodSeconds"] == 10

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    async def test_that_has_ended_is_deleted_at_once(self, call: Caller, phase: str) -> None:
        await call.made(PODS, pod())
        await bind(call)
        await call("PATCH", f"{PODS}/train/status", {"status": {"phase": phase}}, MERGE)
        await call("DELETE", f"{PODS}/train")
        assert (await call("GET", f"{PODS}/train")).status == 404


async def test_a_definition_is_deleted_with_its_objects(call: Caller) -> None:
    names_of = {"plural": "desks", "kind": "Desk"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    spec = {"group": "library.example", "scope": "Cluster", "names": names_of, "versions": [version]}
    await call.made(CRDS, {"metadata": {"name": "desks.library.example"}, "spec": spec})
    held = {"metadata": {"name": "d1", "finalizers": ["library.example/hold"]}}
    await call.made("/apis/library.example/v1/desks", held)
    await call("DELETE", f"{CRDS}/desks.library.example")
    assert (await call("GET", f"{CRDS}/desks.library.example")).status == 200, "it waits for an object with a finalizer"
    await call("PATCH", "/apis/library.example/v1/desks/d1", {"metadata": {"finalizers": None}}, MERGE)
    assert (await call("GET", f"{CRDS}/desks.library.example")).status == 404
    assert (await call("GET", "/apis/library.example/v1/desks")).status == 404


async def test_a_collection_is_deleted_by_selector(call: Caller) -> None:
    for name, colour in (("a", "red"), ("b", "blue")):
        await call.made(MAPS, config_map(name, labels={"colour": colour}))
    await call("DELETE", MAPS, labelSelector="colour=red")
    assert names(await call("GET", MAPS)) == ["b"]
