"""What becomes of a pod before it is made, sentence by sentence."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from carrel.admission.admission import Policy
from carrel.dialects import protected_keys
from carrel.dialects.hand_over_record import HandOver, HandOverPhase, Why
from carrel.dialects.registry import ALL
from carrel.dialects.seal import Seal
from tests.kit.forged import PROTECTED, PROTECTED_LABELS
from tests.kit.reviews import GPU, MODEL, NOON, SPAWNER, BookedPeople, Json, World, a_pod, review

ALICE = "alice@lab.example"
EVENING = NOON + timedelta(hours=8)
DEVICES = {"NVIDIA_VISIBLE_DEVICES": "<carrel.dev/devices>", "CUDA_VISIBLE_DEVICES": "<carrel.dev/devices>"}
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"


def booked(**changes: Any) -> World:
    return World(desk=BookedPeople({ALICE: EVENING}, **changes))


def full(**policy: Any) -> World:
    return World(desk=BookedPeople(cards={MODEL: 0}), policy=Policy(**policy))


# --- tiers -----------------------------------------------------------------------------------------------------------


async def test_a_pod_of_somebody_with_an_active_booking_is_booked_until_its_end() -> None:
    told = await booked().make(a_pod(GPU))

    assert told.annotations == {
        "carrel.dev/tier": "booked",
        "carrel.dev/user": ALICE,
        "terminate-at": "2026-11-16T20:00:00Z",
        "carrel.dev/gpu-model": MODEL,
    }
    assert told.object["spec"]["priorityClassName"] == "carrel-booked"
    assert told.object["spec"]["schedulerName"] == "gpu-scheduler"
    assert told.env() == DEVICES


async def test_a_pod_of_anybody_else_is_opportunistic_and_may_be_revoked_at_any_time() -> None:
    told = await World().make(a_pod(GPU))

    assert told.annotations == {
        "carrel.dev/tier": "opportunistic",
        "carrel.dev/user": ALICE,
        "terminate-at": "1900-01-01T08:00:00Z",
    }
    assert told.object["spec"]["priorityClassName"] == "carrel-opportunistic"
    assert told.container()["resources"]["limits"] == GPU


async def test_the_number_that_belongs_to_another_priority_class_is_taken_off() -> None:
    told = await booked().make(a_pod(GPU, priorityClassName="mine", preemptionPolicy="PreemptLowerPriority"))

    assert "priority" not in told.object["spec"] and "preemptionPolicy" not in told.object["spec"]


async def test_a_priority_class_that_does_not_exist_is_not_named_as_no_pod_could_be_made() -> None:
    told = await replace(booked(), classes=()).make(a_pod(GPU))

    assert "priorityClassName" not in told.object["spec"]


@pytest.mark.parametrize(
    ("pod", "user"),
    [(a_pod(), ALICE), (a_pod(GPU), JOB_CONTROLLER)],
    ids=["without a GPU", "of nobody"],
)
@pytest.mark.parametrize("name", ["carrel-booked", "carrel-opportunistic"])
async def test_the_priority_of_a_tier_is_had_by_no_pod_without_one(pod: Json, user: str, name: str) -> None:
    asked = {**pod, "spec": {**pod["spec"], "priorityClassName": name, "priority": 1000, "preemptionPolicy": "Never"}}
    told = await booked().make(asked, user)

    assert told.allowed and not told.object["spec"].keys() & {"priorityClassName", "priority", "preemptionPolicy"}
    mine = await booked().make({**pod, "spec": {**pod["spec"], "priorityClassName": "mine"}}, user)
    assert mine.object["spec"]["priorityClassName"] == "mine"


async def test_a_booking_that_has_just_ended_is_none() -> None:
    world = World(desk=BookedPeople({ALICE: NOON}))

    assert (await world.make(a_pod(GPU))).annotations["carrel.dev/tier"] == "opportunistic"


async def test_a_model_that_the_pod_names_itself_is_left_alone() -> None:
    told = await booked().make(a_pod(GPU, annotations={"carrel.dev/gpu-model": MODEL}))

    assert told.annotations["carrel.dev/tier"] == "booked"
    assert (await booked().make(a_pod(GPU, nodeSelector={"nvidia.com/gpu.product": MODEL}))).annotations.get(
        "carrel.dev/gpu-model"
    ) is None


async def test_a_booking_is_for_its_model_and_no_other() -> None:
    told = await booked().make(a_pod(GPU, annotations={"carrel.dev/gpu-model": "NVIDIA-H100"}))

    assert told.annotations["carrel.dev/tier"] == "opportunistic"
    assert f"the booking is for {MODEL}, not for NVIDIA-H100" in told.warnings[0]


async def test_a_booking_service_that_is_down_makes_a_pod_opportunistic_and_says_so() -> None:
    told = await World(desk=BookedPeople({ALICE: EVENING}, silence="refused")).make(a_pod(GPU))

    assert told.allowed and told.annotations["carrel.dev/tier"] == "opportunistic"
    assert told.warnings == ["the booking service is silent; decided as if no booking were active"]
    assert told.container()["resources"]["limits"] == GPU, "whether a card is free is not known, so it waits"


async def test_where_nobody_books_pods_have_no_tier_but_see_their_cards() -> None:
    told = await World(desk=None).make(a_pod(GPU))

    assert told.annotations == {} and told.env() == DEVICES


# --- no card free ----------------------------------------------------------------------------------------------------


async def test_an_opportunistic_pod_runs_without_a_gpu_when_no_card_is_free() -> None:
    two = [{"name": "main", "resources": {"limits": GPU, "requests": {**GPU, "cpu": "1"}}}, {"name": "log"}]
    told = await full().make(a_pod(containers=two, initContainers=[{"name": "init", "env": []}]))

    assert told.container()["resources"] == {"limits": {}, "requests": {"cpu": "1"}}
    assert [told.env(name) for name in ("main", "log", "init")] == [{"NVIDIA_VISIBLE_DEVICES": "none"}] * 3
    assert "carrel.dev/tier" not in told.annotations and "terminate-at" not in told.annotations
    assert told.warnings == ["runs without a GPU: no card is free, and no booking is active"]


@pytest.mark.parametrize(
    ("world", "pod"),
    [
        pytest.param(full(waits_when_full=True), a_pod(GPU), id="the cluster is set to wait"),
        pytest.param(full(), a_pod({"aliyun.com/gpu-mem": "100"}), id="a part of a card may be free"),
        pytest.param(full(), a_pod(annotations={"gpu-fraction": "0.5"}), id="so may a fraction"),
        pytest.param(full(), a_pod(annotations={"gpu.scheduling/claim": "c"}), id="nobody knows what a claim is for"),
        pytest.param(full(), a_pod(GPU, annotations={"carrel.dev/gpu-model": "other"}), id="a model nobody counts"),
        pytest.param(World(desk=BookedPeople(cards={})), a_pod(GPU), id="nobody counts at all"),
        pytest.param(World(desk=BookedPeople(cards={MODEL: 1, "b": -3})), a_pod(GPU), id="one card is free"),
        pytest.param(World(desk=BookedPeople({ALICE: EVENING}, cards={MODEL: 0})), a_pod(GPU), id="it is booked"),
        pytest.param(replace(full(), desk=None), a_pod(GPU), id="nobody books"),
    ],
)
async def test_a_pod_keeps_asking_for_its_card(world: World, pod: Json) -> None:
    told = await world.make(pod)

    assert told.allowed and told.object["spec"]["schedulerName"] == "gpu-scheduler"


# --- who it is -------------------------------------------------------------------------------------------------------

JUPYTER = {"hub.jupyter.org/username": "bob-40lab-2eexample"}


@pytest.mark.parametrize(
    ("user", "pod", "who"),
    [
        pytest.param(SPAWNER, a_pod(GPU, labels=JUPYTER), "bob@lab.example", id="a spawner's label"),
        pytest.param(
            SPAWNER,
            a_pod(GPU, labels=JUPYTER, annotations={"hub.jupyter.org/username": "eve@lab.example"}),
            "eve@lab.example",
            id="a spawner's annotation goes first",
        ),
        pytest.param(ALICE, a_pod(GPU, labels=JUPYTER), ALICE, id="anybody else's label is not believed"),
        pytest.param(JOB_CONTROLLER, a_pod(GPU, labels=JUPYTER), "owner@lab.example", id="the namespace's owner"),
        pytest.param(SPAWNER, a_pod(GPU), "owner@lab.example", id="a spawner that names nobody"),
        pytest.param(
            SPAWNER,
            a_pod(GPU, labels={"hub.jupyter.org/username": "-ff"}),
            "owner@lab.example",
            id="a spawner whose label cannot be read",
        ),
        pytest.param("oidc:carol", a_pod(GPU), "carol", id="without the prefix of the API server"),
    ],
)
async def test_who_a_pod_belongs_to(user: str, pod: Json, who: str) -> None:
    world = World(owners={"lab": "owner@lab.example"}, username_prefix="oidc:")

    assert (await world.make(pod, user)).annotations["carrel.dev/user"] == who


async def test_a_pod_of_nobody_has_no_tier_but_sees_its_card() -> None:
    world = booked()
    told = await world.make(a_pod(GPU), JOB_CONTROLLER)

    assert told.annotations == {} and told.env() == DEVICES
    assert world.desk is not None and not world.desk.asked


async def test_a_strict_cluster_refuses_a_gpu_pod_of_nobody_and_no_other() -> None:
    world = World(policy=Policy(strict=True))

    told = await world.make(a_pod(GPU), JOB_CONTROLLER)
    assert not told.allowed and told.message == "pod lab/train asks for a GPU, and nobody knows whose pod it is"
    assert (await world.make(a_pod(), JOB_CONTROLLER)).allowed


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        pytest.param(a_pod(GPU, nodeName="n1"), "names its node (n1); leave that to the scheduler", id="a node"),
        pytest.param(a_pod(GPU, schedulerName="mine"), "wants the scheduler 'mine'", id="another scheduler"),
        pytest.param(a_pod(GPU, annotations={"gpu-fraction": "0.5"}), "in 2 ways", id="two dialects"),
        pytest.param(a_pod(annotations={"gpu-fraction": "2"}), "a number between 0 and 1", id="too much of a card"),
        pytest.param(a_pod({"nvidia.com/gpu": "-1"}), "nvidia.com/gpu", id="less than nothing"),
        pytest.param(a_pod({"nvidia.com/gpu": "0.5"}), "nvidia.com/gpu", id="half a card of NVIDIA's"),
        pytest.param(a_pod({"nvidia.com/gpu": "9223372036854775808"}), "nvidia.com/gpu", id="2^63 cards"),
        pytest.param(a_pod(annotations={"gpu.scheduling/claim": ""}), "GpuClaim", id="a claim without a name"),
        pytest.param(
            a_pod(GPU, annotations={"carrel.dev/gpu-model": "a"}, nodeSelector={"nvidia.com/gpu.product": "b"}),
            "asks for two models",
            id="two models",
        ),
    ],
)
async def test_a_gpu_pod_that_cannot_be_served_is_refused_with_the_reason(pod: Json, why: str) -> None:
    told = await World().make(pod)

    assert not told.allowed and told.code == 422
    assert why in told.message


@pytest.mark.parametrize("scheduler", ["", "default-scheduler", "kai-scheduler", "gpu-scheduler"])
async def test_a_pod_that_did_not_choose_is_given_to_the_scheduler_that_asks_carrel(scheduler: str) -> None:
    assert (await World().make(a_pod(GPU, schedulerName=scheduler))).object["spec"]["schedulerName"] == "gpu-scheduler"


async def test_a_quantity_of_nothing_asks_for_nothing() -> None:
    assert (await World().make(a_pod({"nvidia.com/gpu": "0"}, nodeName="n1"))).patch == []


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
            id="two containers with cards of their own",
        ),
        pytest.param(
            a_pod(
                containers=[{"name": "a", "resources": {"requests": GPU}}],
                initContainers=[{"name": "i", "resources": {"limits": GPU}}],
            ),
            {"a": "<devices.carrel.dev/a>", "i": "<devices.carrel.dev/i>"},
            id="an init container before it",
        ),
        pytest.param(
            a_pod(containers=[{"name": "a", "resources": {"limits": GPU}}, {"name": "log"}]),
            {"a": "<carrel.dev/devices>", "log": "void"},
            id="a container beside it sees no card",
        ),
        pytest.param(
            a_pod(
                containers=[{"name": n, "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}} for n in "ab"],
            ),
            {"a": "<carrel.dev/devices>", "b": "<carrel.dev/devices>"},
            id="gpushare's containers share a card",
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
            id="KAI's container is named",
        ),
        pytest.param(
            a_pod(annotations={"carrel.dev/gpu-memory-mib": "8138"}),
            {"main": "<carrel.dev/devices>"},
            id="Carrel's own words",
        ),
    ],
)
async def test_each_container_sees_its_own_cards(pod: Json, seen: dict[str, str]) -> None:
    told = await World().make(pod)

    assert {name: told.env(name)["NVIDIA_VISIBLE_DEVICES"] for name in seen} == seen


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
async def test_what_a_user_wrote_is_replaced(written: list[Json]) -> None:
    mine = {"name": "MINE", "value": "$(CUDA_VISIBLE_DEVICES)"}
    container = {"name": "main", "resources": {"limits": GPU}, "env": [mine, *written]}

    told = await World().make(a_pod(containers=[container]))

    assert told.env() == {**DEVICES, "MINE": "$(CUDA_VISIBLE_DEVICES)"}
    assert told.container()["env"][-1] == mine, "it may refer to the others, so it comes after them"


MEMORY = {
    "ALIYUN_COM_GPU_MEM_IDX": "<ALIYUN_COM_GPU_MEM_IDX>",
    "ALIYUN_COM_GPU_MEM_DEV": "<ALIYUN_COM_GPU_MEM_DEV>",
    "ALIYUN_COM_GPU_MEM_POD": "<ALIYUN_COM_GPU_MEM_POD>",
    "CGPU_DISABLE": "<carrel.dev/cgpu-disable>",
}


async def test_each_container_is_told_its_part_of_the_memory_as_gpushares_plugin_does() -> None:
    limits = {"a": {"aliyun.com/gpu-mem": "4000"}, "b": {"aliyun.com/gpu-mem": "6000"}, "log": {}}
    containers = [{"name": name, "resources": {"limits": each}} for name, each in limits.items()]
    warms_up = {"name": "warms-up", "resources": {"limits": {"aliyun.com/gpu-mem": "8000"}}}

    told = await World().make(a_pod(containers=containers, initContainers=[warms_up]))

    for name, units in (("a", "4000"), ("b", "6000"), ("warms-up", "8000")):
        assert told.env(name) == {**DEVICES, **MEMORY, "ALIYUN_COM_GPU_MEM_CONTAINER": units}
    assert told.env("log") == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_who_wrote_himself_a_part_is_told_his_own_and_isolation_is_his_to_choose() -> None:
    written = [{"name": "ALIYUN_COM_GPU_MEM_IDX", "value": "7"}, {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "1"}]
    mine = [{"name": "CGPU_DISABLE", "value": "true"}, {"name": "MINE", "value": "$(ALIYUN_COM_GPU_MEM_CONTAINER)"}]
    limits = {"limits": {"aliyun.com/gpu-mem": "8138"}}
    container = {"name": "main", "resources": limits, "env": [*written, *mine]}

    told = await World().make(a_pod(containers=[container]))

    own = {"CGPU_DISABLE": "true", "MINE": "$(ALIYUN_COM_GPU_MEM_CONTAINER)"}
    assert told.env() == {**DEVICES, **MEMORY, "ALIYUN_COM_GPU_MEM_CONTAINER": "8138", **own}
    assert told.container()["env"][-2:] == mine
    assert (await World().make(told.object)).object == told.object, "who asks again gets the same"


async def test_beside_nvidias_plugin_its_own_word_stands() -> None:
    world = World(policy=Policy(coexist=True))
    container = {"name": "main", "resources": {"limits": GPU}, "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}

    assert (await world.make(a_pod(containers=[container]))).env() == {}
    assert (await world.make(a_pod(annotations={"gpu-fraction": "0.5"}))).env() == DEVICES


async def test_a_container_that_joins_a_running_pod_sees_what_it_looks_at_and_others_stay_as_they_are() -> None:
    here = {"name": "old", "image": "x"}
    running = a_pod(
        containers=[{"name": "a", "resources": {"limits": GPU}}, {"name": "b", "resources": {"limits": GPU}}],
        ephemeralContainers=[here],
    )
    new = {**running, "spec": {**running["spec"]}}
    new["spec"]["ephemeralContainers"] = [here, {"name": "debug", "targetContainerName": "b"}, {"name": "free"}]

    told = await World().make(new, old=running, operation="UPDATE", subresource="ephemeralcontainers")

    assert told.container("old") == here
    assert told.env("debug")["NVIDIA_VISIBLE_DEVICES"] == "<devices.carrel.dev/b>"
    assert told.env("free")["NVIDIA_VISIBLE_DEVICES"] == "<carrel.dev/devices>"


@pytest.mark.parametrize(
    ("looks_at", "policy", "sees"),
    [
        pytest.param("a", Policy(), "<carrel.dev/devices>", id="a container with a card"),
        pytest.param("b", Policy(), "void", id="a container without one"),
        pytest.param("viewer", Policy(), "void", id="a sidecar without one"),
        pytest.param("nobody", Policy(), "void", id="a container that does not exist"),
        pytest.param("", Policy(), "<carrel.dev/devices>", id="the whole pod"),
        pytest.param("a", Policy(coexist=True), "void", id="what NVIDIA's plugin gave nobody can say"),
        pytest.param("", Policy(coexist=True), "void", id="nor for the whole pod"),
    ],
)
async def test_a_container_that_joins_a_gpu_pod_cannot_name_its_cards(looks_at: str, policy: Policy, sees: str) -> None:
    running = a_pod(
        containers=[{"name": "a", "resources": {"limits": GPU}}, {"name": "b"}],
        initContainers=[{"name": "viewer", "restartPolicy": "Always"}],
    )
    debug = {
        "name": "debug",
        "env": [{"name": name, "value": "all"} for name in DEVICES],
        "targetContainerName": looks_at,
    }
    new = {**running, "spec": {**running["spec"], "ephemeralContainers": [debug]}}

    told = await World(policy=policy).make(new, old=running, operation="UPDATE", subresource="ephemeralcontainers")

    assert told.env("debug")["NVIDIA_VISIBLE_DEVICES"] == sees
    assert "all" not in told.env("debug").values()


async def test_where_cards_are_hidden_from_everybody_also_a_container_that_joins_later_sees_none() -> None:
    all_cards = {"name": "debug", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    running, later = a_pod(), {"operation": "UPDATE", "subresource": "ephemeralcontainers"}
    new = {**running, "spec": {**running["spec"], "ephemeralContainers": [all_cards]}}

    hiding = World(policy=Policy(hides_from_everybody=True))
    assert (await hiding.make(new, old=running, **later)).env("debug") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert (await World().make(new, old=running, **later)).patch == []


# --- what today's pods can say ---------------------------------------------------------------------------------------

SIDECAR = {"name": "viewer", "restartPolicy": "Always", "resources": {"limits": GPU}}
QUOTA = {"schedulingGates": [{"name": "example.com/quota"}]}


async def test_a_sidecar_with_a_card_sees_its_own() -> None:
    prepare = {"name": "prepare", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    told = await World().make(a_pod(GPU, initContainers=[SIDECAR, prepare]))

    assert told.env("viewer")["NVIDIA_VISIBLE_DEVICES"] == "<devices.carrel.dev/viewer>"
    assert told.env("main")["NVIDIA_VISIBLE_DEVICES"] == "<devices.carrel.dev/main>"
    assert told.env("prepare") == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_a_sidecar_alone_with_a_card_is_the_only_one_that_sees_it() -> None:
    told = await World().make(a_pod(initContainers=[SIDECAR]))

    assert (told.env("viewer"), told.env("main")) == (DEVICES, {"NVIDIA_VISIBLE_DEVICES": "void"})


async def test_a_sidecar_loses_its_card_too_when_none_is_free() -> None:
    told = await full().make(a_pod(initContainers=[SIDECAR]))

    assert not told.container("viewer")["resources"]["limits"]
    assert told.env("viewer") == {"NVIDIA_VISIBLE_DEVICES": "none"}


async def test_a_pod_with_scheduling_gates_keeps_its_gpu_when_none_is_free_as_it_is_not_to_run_now() -> None:
    told = await full().make(a_pod(GPU, **QUOTA))

    assert told.annotations["carrel.dev/tier"] == "opportunistic"
    assert told.container()["resources"]["limits"] == GPU
    assert told.object["spec"]["schedulingGates"] == QUOTA["schedulingGates"]


@pytest.mark.parametrize("world", [World(), full(), booked()], ids=["a card is free", "none is", "it is booked"])
async def test_what_todays_pods_say_passes_through_as_it_is(world: World) -> None:
    said = {
        "resources": {"limits": {"cpu": "4", "memory": "8Gi"}},
        "volumes": [{"name": "model", "image": {"reference": "registry.example/model:1"}}],
        "resourceClaims": [{"name": "net", "resourceClaimName": "fast-net"}],
        "a field of tomorrow": {"of": ["which nobody has heard"]},
    }
    told = await world.make(a_pod(GPU, **said))

    assert told.allowed
    assert {key: told.object["spec"][key] for key in said} == said


@pytest.mark.parametrize("subresource", ["resize", "eviction", "scale"])
async def test_what_becomes_of_a_gpu_pod_on_another_way_is_none_of_our_business(subresource: str) -> None:
    running = a_pod(GPU, annotations={"carrel.dev/tier": "booked"})
    resized = {**running, "spec": {**running["spec"], "containers": [{"name": "main", "resources": {"limits": GPU}}]}}
    question = review(resized, old=running, operation="UPDATE", subresource=subresource)

    told = await World().ask(question)
    assert told.allowed and told.patch == []


# --- pods that are none of our business ------------------------------------------------------------------------------


async def test_a_pod_that_asks_for_no_gpu_is_not_touched() -> None:
    told = await full(strict=True).make(a_pod({"cpu": "1"}, nodeName="n1", schedulerName="mine"))

    assert told.allowed and told.patch == [] and told.warnings == []


async def test_where_it_is_wanted_such_a_pod_is_told_to_see_no_card() -> None:
    told = await World(policy=Policy(hides_from_everybody=True)).make(a_pod())

    assert told.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize("user", ["system:serviceaccount:carrel:carrel-controller", "root"])
async def test_what_carrel_makes_itself_is_left_alone(user: str) -> None:
    told = await World().make(a_pod(GPU, annotations=PROTECTED, nodeName="n1"), user)

    assert told.allowed and told.patch == []


async def test_the_next_pod_of_an_owner_whose_pod_gave_its_card_back_runs_without_a_gpu() -> None:
    record = HandOver("gone", "lab/train-1", Why.REVOKED, NOON, NOON, HandOverPhase.ENDING, owner="job-uid")
    told = await World(handed_over={"job-uid": record}).make(a_pod(GPU, owner="job-uid"), JOB_CONTROLLER)

    assert told.container()["resources"] == {"limits": {}}
    assert told.env() == {"NVIDIA_VISIBLE_DEVICES": "none"}
    assert told.annotations == {"carrel.dev/handed-over": '{"at":"2026-11-16T12:00:00Z","why":"revoked","from":"gone"}'}
    assert (await World(handed_over={"job-uid": record}).make(a_pod(GPU, owner="other"))).env() == DEVICES
    assert (await World(handed_over={"job-uid": record}).make(told.object, JOB_CONTROLLER)).patch == []


async def test_nobody_else_says_that_he_is_the_successor_of_a_pod() -> None:
    """Else a record would be closed by a pod that succeeds nobody, and the next pod of its owner had a card again."""
    mark = {"carrel.dev/handed-over": '{"at":"2026-11-16T12:00:00Z","why":"revoked","from":"gone"}'}
    elsewhere = HandOver("gone", "other/train-1", Why.REVOKED, NOON, NOON, HandOverPhase.ENDING, owner="job-uid")

    assert (await World().make(a_pod(annotations=mark))).annotations == {}
    assert (await World(handed_over={"job-uid": elsewhere}).make(a_pod(GPU, owner="job-uid"))).env() == DEVICES


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "gpu-scheduler"])
async def test_a_pod_that_runs_without_a_gpu_does_not_wait_for_a_scheduler_of_gpus(scheduler: str) -> None:
    assert "schedulerName" not in (await full().make(a_pod(GPU, schedulerName=scheduler))).object["spec"]


# --- forged keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [GPU, {}], ids=["a GPU pod", "another pod"])
@pytest.mark.parametrize("key", [*PROTECTED, *PROTECTED_LABELS])
async def test_a_forged_key_is_stripped(key: str, limits: dict[str, str]) -> None:
    group = "annotations" if key in PROTECTED else "labels"
    forged = PROTECTED.get(key) or PROTECTED_LABELS[key]

    told = await World(desk=None).make(a_pod(limits, **{group: {key: forged, "mine": "stays"}}))

    assert told.object["metadata"][group] == {"mine": "stays"}


def test_every_protected_key_is_tried() -> None:
    assert PROTECTED.keys() >= protected_keys.annotations() and PROTECTED_LABELS.keys() >= ALL.written_labels


# --- the seal --------------------------------------------------------------------------------------------------------


async def test_an_admitted_gpu_pod_carries_a_seal_and_keeps_it_when_asked_again() -> None:
    later = NOON
    world = replace(booked(), seal=Seal((b"key",)), now=lambda: later)

    first = await world.make(a_pod(GPU))
    later = NOON + timedelta(seconds=30)
    again = await world.make(first.object)

    assert first.annotations["carrel.dev/admitted"].startswith("2026-11-16T12:00:00Z ")
    assert again.patch == []


async def test_a_pod_without_a_gpu_has_no_seal() -> None:
    assert (await replace(full(), seal=Seal((b"key",))).make(a_pod(GPU))).annotations == {}
    assert (await replace(full(), seal=Seal((b"key",))).make(a_pod())).patch == []


# --- reviews ---------------------------------------------------------------------------------------------------------


async def test_an_old_review_is_answered_in_its_own_version_and_a_dry_run_like_any_other() -> None:
    for changes in ({"version": "v1beta1"}, {"dry_run": True}):
        assert (await World().make(a_pod(GPU), **changes)).env() == DEVICES


async def test_other_kinds_and_other_operations_are_let_through() -> None:
    assert (await World().make({"metadata": {}}, kind="Service")).patch == []
    assert (await World().make(a_pod(GPU), operation="UPDATE", old=a_pod(GPU))).patch == []
    assert (await World().ask(review(None, old=a_pod(GPU), operation="DELETE"))).allowed
