"""Which GPUs admission lets each container see, and what it leaves unchanged."""

import pytest

from carrel.admission.options import AdmissionOptions
from carrel.dialects.options import DeviceList, HideFrom
from tests.kit.reviews import (
    DEVICES,
    GPU,
    Json,
    ReviewedCluster,
    a_pod,
    booked,
    full,
    review,
)

# --- environment -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "seen"),
    [
        pytest.param(a_pod(GPU), {"main": "<carrel.dev/devices>"}, id="one container"),
        pytest.param(
            a_pod(
                containers=[{"name": "a", "resources": {"limits": GPU}}, {"name": "b", "resources": {"limits": GPU}}],
            ),
            {"a": "<devices.carrel.dev/a>", "b": "<devices.carrel.dev/b>"},
            id="two containers with GPUs of their own",
        ),
        pytest.param(
            a_pod(
                containers=[{"name": "a", "resources": {"requests": GPU}}],
                initContainers=[{"name": "i", "resources": {"limits": GPU}}],
            ),
            {"a": "<devices.carrel.dev/a>", "i": "<devices.carrel.dev/i>"},
            id="an init container with a GPU",
        ),
        pytest.param(
            a_pod(containers=[{"name": "a", "resources": {"limits": GPU}}, {"name": "log"}]),
            {"a": "<carrel.dev/devices>", "log": "void"},
            id="another container sees no GPU",
        ),
        pytest.param(
            a_pod(
                containers=[{"name": n, "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}} for n in "ab"],
            ),
            {"a": "<carrel.dev/devices>", "b": "<carrel.dev/devices>"},
            id="gpushare's containers share a GPU",
        ),
        pytest.param(
            a_pod(
                annotations={"gpu.scheduling/claim": "c"}, containers=[{"name": "a"}], initContainers=[{"name": "i"}]
            ),
            {"a": "<carrel.dev/devices>", "i": "<carrel.dev/devices>"},
            id="a claim is for the whole pod",
        ),
        pytest.param(
            a_pod(
                annotations={"gpu-fraction": "0.5", "gpu-fraction-container-name": "b"},
                containers=[{"name": "a"}, {"name": "b"}],
            ),
            {"a": "void", "b": "<carrel.dev/devices>"},
            id="KAI names the container",
        ),
        pytest.param(
            a_pod(annotations={"carrel.dev/gpu-memory-mib": "8138"}),
            {"main": "<carrel.dev/devices>"},
            id="Carrel's own annotations",
        ),
    ],
)
async def test_each_container_sees_its_own_gpus(pod: Json, seen: dict[str, str]) -> None:
    reviewed = await ReviewedCluster().create(pod)

    assert {name: reviewed.env(name)["NVIDIA_VISIBLE_DEVICES"] for name in seen} == seen


@pytest.mark.parametrize(
    "written",
    [
        pytest.param([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], id="a value"),
        pytest.param(
            [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            id="valueFrom",
        ),
        pytest.param([{"name": "NVIDIA_VISIBLE_DEVICES", "value": x} for x in ("all", "0")], id="twice"),
        pytest.param([{"name": "CUDA_VISIBLE_DEVICES", "value": "7"}], id="CUDA's"),
    ],
)
async def test_variables_that_a_user_wrote_are_replaced(written: list[Json]) -> None:
    mine = {"name": "MINE", "value": "$(CUDA_VISIBLE_DEVICES)"}
    container = {"name": "main", "resources": {"limits": GPU}, "env": [mine, *written]}

    reviewed = await ReviewedCluster().create(a_pod(containers=[container]))

    assert reviewed.env() == {**DEVICES, "MINE": "$(CUDA_VISIBLE_DEVICES)"}
    assert reviewed.container()["env"][-1] == mine, "it may refer to the others, so it must come after them"


MEMORY = {
    "ALIYUN_COM_GPU_MEM_IDX": "<ALIYUN_COM_GPU_MEM_IDX>",
    "ALIYUN_COM_GPU_MEM_DEV": "<ALIYUN_COM_GPU_MEM_DEV>",
    "ALIYUN_COM_GPU_MEM_POD": "<ALIYUN_COM_GPU_MEM_POD>",
    "CGPU_DISABLE": "<carrel.dev/cgpu-disable>",
}


async def test_each_container_gets_gpushares_variables_for_its_part_of_the_memory() -> None:
    limits = {"a": {"aliyun.com/gpu-mem": "4000"}, "b": {"aliyun.com/gpu-mem": "6000"}, "log": {}}
    containers = [{"name": name, "resources": {"limits": each}} for name, each in limits.items()]
    warms_up = {"name": "warms-up", "resources": {"limits": {"aliyun.com/gpu-mem": "8000"}}}

    reviewed = await ReviewedCluster().create(a_pod(containers=containers, initContainers=[warms_up]))

    for name, units in (("a", "4000"), ("b", "6000"), ("warms-up", "8000")):
        assert reviewed.env(name) == {**DEVICES, **MEMORY, "ALIYUN_COM_GPU_MEM_CONTAINER": units}
    assert reviewed.env("log") == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_a_forged_part_is_replaced_but_a_user_may_choose_the_isolation() -> None:
    written = [{"name": "ALIYUN_COM_GPU_MEM_IDX", "value": "7"}, {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "1"}]
    mine = [{"name": "CGPU_DISABLE", "value": "true"}, {"name": "MINE", "value": "$(ALIYUN_COM_GPU_MEM_CONTAINER)"}]
    limits = {"limits": {"aliyun.com/gpu-mem": "8138"}}
    container = {"name": "main", "resources": limits, "env": [*written, *mine]}

    reviewed = await ReviewedCluster().create(a_pod(containers=[container]))

    own = {"CGPU_DISABLE": "true", "MINE": "$(ALIYUN_COM_GPU_MEM_CONTAINER)"}
    assert reviewed.env() == {**DEVICES, **MEMORY, "ALIYUN_COM_GPU_MEM_CONTAINER": "8138", **own}
    assert reviewed.container()["env"][-2:] == mine
    assert (await ReviewedCluster().create(reviewed.object)).object == reviewed.object, (
        "a second review changes nothing"
    )


async def test_with_nvidias_plugin_its_own_variables_stay() -> None:
    cluster = ReviewedCluster(options=AdmissionOptions(coexist=True))
    container = {"name": "main", "resources": {"limits": GPU}, "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}

    assert (await cluster.create(a_pod(containers=[container]))).env() == {}
    assert (await cluster.create(a_pod(annotations={"gpu-fraction": "0.5"}))).env() == DEVICES


async def test_an_ephemeral_container_sees_the_gpus_of_its_target_and_others_stay_as_they_are() -> None:
    here = {"name": "old", "image": "x"}
    running = a_pod(
        containers=[{"name": "a", "resources": {"limits": GPU}}, {"name": "b", "resources": {"limits": GPU}}],
        ephemeralContainers=[here],
    )
    new = {**running, "spec": {**running["spec"]}}
    new["spec"]["ephemeralContainers"] = [here, {"name": "debug", "targetContainerName": "b"}, {"name": "free"}]

    reviewed = await ReviewedCluster().create(new, old=running, operation="UPDATE", subresource="ephemeralcontainers")

    assert reviewed.container("old") == here
    assert reviewed.env("debug")["NVIDIA_VISIBLE_DEVICES"] == "<devices.carrel.dev/b>"
    assert reviewed.env("free")["NVIDIA_VISIBLE_DEVICES"] == "<carrel.dev/devices>"


@pytest.mark.parametrize(
    ("target", "options", "sees"),
    [
        pytest.param("a", AdmissionOptions(), "<carrel.dev/devices>", id="a container with a GPU"),
        pytest.param("b", AdmissionOptions(), "void", id="a container without one"),
        pytest.param("viewer", AdmissionOptions(), "void", id="a sidecar without one"),
        pytest.param("nobody", AdmissionOptions(), "void", id="a container that does not exist"),
        pytest.param("", AdmissionOptions(), "<carrel.dev/devices>", id="the whole pod"),
        pytest.param("a", AdmissionOptions(coexist=True), "void", id="with NVIDIA's plugin Carrel does not know"),
        pytest.param("", AdmissionOptions(coexist=True), "void", id="with NVIDIA's plugin, the whole pod"),
    ],
)
async def test_an_ephemeral_container_cannot_choose_its_gpus(target: str, options: AdmissionOptions, sees: str) -> None:
    running = a_pod(
        containers=[{"name": "a", "resources": {"limits": GPU}}, {"name": "b"}],
        initContainers=[{"name": "viewer", "restartPolicy": "Always"}],
    )
    debug = {
        "name": "debug",
        "env": [{"name": name, "value": "all"} for name in DEVICES],
        "targetContainerName": target,
    }
    new = {**running, "spec": {**running["spec"], "ephemeralContainers": [debug]}}

    reviewed = await ReviewedCluster(options=options).create(
        new, old=running, operation="UPDATE", subresource="ephemeralcontainers"
    )

    assert reviewed.env("debug")["NVIDIA_VISIBLE_DEVICES"] == sees
    assert "all" not in reviewed.env("debug").values()


async def test_if_gpus_are_hidden_from_all_pods_an_ephemeral_container_sees_none() -> None:
    all_gpus = {"name": "debug", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    running, later = a_pod(), {"operation": "UPDATE", "subresource": "ephemeralcontainers"}
    new = {**running, "spec": {**running["spec"], "ephemeralContainers": [all_gpus]}}

    for hide_from in (HideFrom.NVIDIA_PODS, HideFrom.ALL_PODS):
        hiding = ReviewedCluster(options=AdmissionOptions(hide_from=hide_from))
        assert (await hiding.create(new, old=running, **later)).env("debug") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert (await ReviewedCluster(options=SHOWN).create(new, old=running, **later)).patch == []


# --- pods that ask for no GPU ----------------------------------------------------------------------------------------

SHOWN = AdmissionOptions(hide_from=HideFrom.GPU_PODS)
NONE = {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize("coexist", [False, True], ids=["native", "beside NVIDIA's plugin"])
@pytest.mark.parametrize(
    ("container", "spec"),
    [
        pytest.param({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, {}, id="by its environment"),
        pytest.param(
            {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]},
            {},
            id="by one key of a ConfigMap",
        ),
        pytest.param({"envFrom": [{"configMapRef": {"name": "settings"}}]}, {}, id="by a ConfigMap"),
        pytest.param({"envFrom": [{"secretRef": {"name": "settings"}}]}, {}, id="by a Secret"),
        pytest.param({}, {"runtimeClassName": "nvidia"}, id="by its image, with NVIDIA's RuntimeClass"),
        pytest.param({}, {"runtimeClassName": "nvidia-legacy"}, id="by its image, with another one of NVIDIA"),
        pytest.param({}, {"schedulerName": "kai-scheduler"}, id="by KAI"),
        pytest.param({}, {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}, id="beside a resource claim"),
    ],
)
async def test_a_pod_that_asks_for_no_gpu_sees_none(container: Json, spec: Json, coexist: bool) -> None:
    main = {"name": "main", "image": "work", **container}
    pod = a_pod(**{"containers": [main, {"name": "other"}], "initContainers": [{"name": "prepare"}], **spec})

    hiding = ReviewedCluster(options=AdmissionOptions(coexist=coexist))
    reviewed = await hiding.create(pod)
    again = await hiding.create(reviewed.object)

    assert [reviewed.env(name) for name in ("main", "other", "prepare")] == [NONE] * 3
    assert again.patch == []
    assert (await ReviewedCluster(options=SHOWN).create(pod)).patch == [], "the switch"


async def test_a_runtime_class_is_nvidias_by_its_handler_whatever_its_name() -> None:
    cluster = ReviewedCluster(handlers={"fast": "nvidia-cdi", "sandbox": "kata"})

    assert (await cluster.create(a_pod(runtimeClassName="fast"))).env("main") == NONE
    assert (await cluster.create(a_pod(runtimeClassName="sandbox"))).patch == []


@pytest.mark.parametrize(
    ("namespace", "labels"),
    [("gpu-operator", {}), ("kube-system", {}), ("carrel", {}), ("lab", {"carrel.dev/sees-gpus": "true"})],
)
async def test_tools_that_must_see_gpus_see_them(namespace: str, labels: dict[str, str]) -> None:
    """NVIDIA's own DaemonSets, Carrel's agent, and what an admin adds."""
    pod = a_pod(runtimeClassName="nvidia")
    asked = review(pod, "system:serviceaccount:kube-system:daemon-set-controller")
    asked["request"]["namespace"] = namespace

    assert (await ReviewedCluster(namespace_labels=labels).ask(asked)).patch == []
    asked["request"]["namespace"] = "lab"
    assert (await ReviewedCluster(namespace_labels={"carrel.dev/sees-gpus": "no"}).ask(asked)).env() == NONE


# --- sidecars, gates, other fields -----------------------------------------------------------------------------------

SIDECAR = {"name": "viewer", "restartPolicy": "Always", "resources": {"limits": GPU}}
QUOTA = {"schedulingGates": [{"name": "example.com/quota"}]}


async def test_a_sidecar_with_a_gpu_sees_its_own() -> None:
    prepare = {"name": "prepare", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    reviewed = await ReviewedCluster().create(a_pod(GPU, initContainers=[SIDECAR, prepare]))

    assert reviewed.env("viewer")["NVIDIA_VISIBLE_DEVICES"] == "<devices.carrel.dev/viewer>"
    assert reviewed.env("main")["NVIDIA_VISIBLE_DEVICES"] == "<devices.carrel.dev/main>"
    assert reviewed.env("prepare") == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_only_a_sidecar_that_asks_alone_sees_the_gpu() -> None:
    reviewed = await ReviewedCluster().create(a_pod(initContainers=[SIDECAR]))

    assert (reviewed.env("viewer"), reviewed.env("main")) == (DEVICES, {"NVIDIA_VISIBLE_DEVICES": "void"})


async def test_a_sidecar_loses_its_gpu_too_when_none_is_free() -> None:
    reviewed = await full().create(a_pod(initContainers=[SIDECAR]))

    assert not reviewed.container("viewer")["resources"]["limits"]
    assert reviewed.env("viewer") == {"NVIDIA_VISIBLE_DEVICES": "none"}


async def test_a_pod_with_scheduling_gates_keeps_its_request_when_no_gpu_is_free() -> None:
    reviewed = await full().create(a_pod(GPU, **QUOTA))

    assert reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    assert reviewed.container()["resources"]["limits"] == GPU
    assert reviewed.object["spec"]["schedulingGates"] == QUOTA["schedulingGates"]


@pytest.mark.parametrize(
    "cluster", [ReviewedCluster(), full(), booked()], ids=["a GPU is free", "no GPU is free", "it is booked"]
)
async def test_other_fields_of_a_pod_are_not_changed(cluster: ReviewedCluster) -> None:
    other_fields = {
        "resources": {"limits": {"cpu": "4", "memory": "8Gi"}},
        "volumes": [{"name": "model", "image": {"reference": "registry.example/model:1"}}],
        "resourceClaims": [{"name": "net", "resourceClaimName": "fast-net"}],
        "a field of tomorrow": {"with": ["an unknown value"]},
    }
    reviewed = await cluster.create(a_pod(GPU, **other_fields))

    assert reviewed.allowed
    assert {key: reviewed.object["spec"][key] for key in other_fields} == other_fields


@pytest.mark.parametrize("subresource", ["resize", "eviction", "scale"])
async def test_other_subresources_of_a_gpu_pod_are_not_changed(subresource: str) -> None:
    running = a_pod(GPU, annotations={"carrel.dev/tier": "booked"})
    resized = {**running, "spec": {**running["spec"], "containers": [{"name": "main", "resources": {"limits": GPU}}]}}
    request_body = review(resized, old=running, operation="UPDATE", subresource=subresource)

    reviewed = await ReviewedCluster().ask(request_body)
    assert reviewed.allowed and reviewed.patch == []


# --- where the runtime ignores the variable --------------------------------------------------------------------------

BY_MOUNTS = AdmissionOptions(device_list=DeviceList.MOUNTS)


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        pytest.param(a_pod(annotations={"gpu.scheduling/claim": "c"}), "gpu.scheduling/claim", id="a claim"),
        pytest.param(a_pod(annotations={"gpu-fraction": "0.5"}), "gpu-fraction", id="a fraction"),
        pytest.param(a_pod(annotations={"carrel.dev/gpu-memory-mib": "8138"}), "carrel.dev/gpu-", id="Carrel's own"),
    ],
)
async def test_a_pod_that_only_the_variable_would_show_its_gpu_is_refused_with_the_reason(
    pod: Json, words: str
) -> None:
    refused = (await ReviewedCluster(options=BY_MOUNTS).create(pod)).message
    assert f"by {words}" in refused
    assert "which only NVIDIA_VISIBLE_DEVICES would show it" in refused
    assert refused.endswith("ask for whole GPUs by nvidia.com/gpu, or for memory by aliyun.com/gpu-mem")
    assert (await ReviewedCluster().create(pod)).allowed


@pytest.mark.parametrize(
    "limits", [pytest.param(GPU, id="whole GPUs"), pytest.param({"aliyun.com/gpu-mem": "8138"}, id="memory")]
)
async def test_what_a_device_plugin_allocates_is_admitted_there(limits: Json) -> None:
    assert (await ReviewedCluster(options=BY_MOUNTS).create(a_pod(limits))).allowed
