"""What of a pod's spec can be written after it was made, each part through its own subresource."""

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Invalid, Json, MergePatch, StrategicPatch
from carrel.kubernetes.objects.resources import PODS
from tests.contracts.objects import pod

DEBUGGER: Json = {"name": "debugger", "image": "busybox", "targetContainerName": "main"}


def sized(cpu: str = "1", **more: str) -> Json:
    resources = {"limits": {"cpu": cpu, **more}, "requests": {"cpu": cpu, **more}}
    return {"containers": [{"name": "main", "image": "busybox", "resources": resources}]}


class TestEphemeralContainers:
    async def test_are_added_through_their_subresource(self, cluster: Client, namespace: str) -> None:
        made = await cluster.create(PODS, pod("train"), namespace)
        patch = StrategicPatch({"spec": {"ephemeralContainers": [DEBUGGER]}})
        after = await cluster.patch(PODS, "train", patch, namespace, subresource="ephemeralcontainers")
        [found] = after["spec"]["ephemeralContainers"]
        assert (found["name"], found["targetContainerName"]) == ("debugger", "main")
        assert after["metadata"]["generation"] == made["metadata"]["generation"] + 1

    async def test_and_nothing_else_is_written_there(self, cluster: Client, namespace: str) -> None:
        await cluster.create(PODS, pod("train"), namespace)
        body = {"spec": {"ephemeralContainers": [DEBUGGER], "nodeName": "n1"}, "metadata": {"labels": {"a": "b"}}}
        after = await cluster.patch(PODS, "train", MergePatch(body), namespace, subresource="ephemeralcontainers")
        assert "nodeName" not in after["spec"]
        assert "labels" not in after["metadata"]

    @pytest.mark.parametrize(
        "containers",
        [
            pytest.param([], id="removed"),
            pytest.param([{**DEBUGGER, "image": "busybox:2"}], id="changed"),
            pytest.param([DEBUGGER, {"name": "main", "image": "busybox"}], id="a name that is taken"),
            pytest.param([DEBUGGER, {"name": "second"}], id="no image"),
        ],
    )
    async def test_stay_as_they_are(self, cluster: Client, namespace: str, containers: list[Json]) -> None:
        await cluster.create(PODS, pod("train"), namespace)
        first = MergePatch({"spec": {"ephemeralContainers": [DEBUGGER]}})
        await cluster.patch(PODS, "train", first, namespace, subresource="ephemeralcontainers")
        then = MergePatch({"spec": {"ephemeralContainers": containers}})
        with pytest.raises(Invalid) as refused:
            await cluster.patch(PODS, "train", then, namespace, subresource="ephemeralcontainers")
        assert refused.value.status == 422

    async def test_cannot_come_with_a_new_pod(self, cluster: Client, namespace: str) -> None:
        with pytest.raises(Invalid) as refused:
            await cluster.create(PODS, pod("train", spec={"ephemeralContainers": [DEBUGGER]}), namespace)
        assert refused.value.details["causes"][0]["field"] == "spec.ephemeralContainers"

    async def test_cannot_be_added_with_the_rest_of_the_pod(self, cluster: Client, namespace: str) -> None:
        await cluster.create(PODS, pod("train"), namespace)
        with pytest.raises(Invalid):
            await cluster.patch(PODS, "train", MergePatch({"spec": {"ephemeralContainers": [DEBUGGER]}}), namespace)


class TestResize:
    async def test_changes_cpu_and_memory(self, cluster: Client, namespace: str) -> None:
        made = await cluster.create(PODS, pod("train", spec=sized("1", memory="1Gi")), namespace)
        patch = StrategicPatch({"spec": sized("2", memory="2Gi")})
        after = await cluster.patch(PODS, "train", patch, namespace, subresource="resize")
        assert after["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}
        assert after["metadata"]["generation"] == made["metadata"]["generation"] + 1

    @pytest.mark.parametrize(
        "spec",
        [
            pytest.param(sized("1", **{"memory": "1Gi", "aliyun.com/gpu-mem": "8138"}), id="more of a GPU"),
            pytest.param({"containers": [{"name": "other", "image": "busybox"}]}, id="another container"),
            pytest.param(
                {"containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]},
                id="another quality of service",
            ),
        ],
    )
    async def test_changes_nothing_else(self, cluster: Client, namespace: str, spec: Json) -> None:
        first = sized("1", **{"memory": "1Gi", "aliyun.com/gpu-mem": "4069"})
        await cluster.create(PODS, pod("train", spec=first), namespace)
        with pytest.raises(Invalid) as refused:
            await cluster.patch(PODS, "train", MergePatch({"spec": spec}), namespace, subresource="resize")
        assert refused.value.status == 422

    async def test_is_not_done_with_the_rest_of_the_pod(self, cluster: Client, namespace: str) -> None:
        await cluster.create(PODS, pod("train", spec=sized("1")), namespace)
        with pytest.raises(Invalid):
            await cluster.patch(PODS, "train", StrategicPatch({"spec": sized("2")}), namespace)
