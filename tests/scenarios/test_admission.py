"""What admission changes on a pod before it is created: tier, owner, refusals, protected keys, seal."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from carrel.admission.admission import AdmissionOptions
from carrel.dialects import protected_keys
from carrel.dialects.hand_over_record import HandOver, HandOverPhase, Why
from carrel.dialects.options import HideFrom
from carrel.dialects.registry import ALL
from carrel.dialects.seal import Seal
from carrel.dialects.when_full import WhenFull
from tests.kit.forged import PROTECTED, PROTECTED_LABELS
from tests.kit.gpus import a_node
from tests.kit.reviews import (
    ALICE,
    DEVICES,
    EVENING,
    GPU,
    JOB_CONTROLLER,
    MODEL,
    NOON,
    SPAWNER,
    BookedPeople,
    Json,
    ReviewedCluster,
    RunningPod,
    a_booking,
    a_pod,
    apply_answer,
    booked,
    full,
    review,
)

# --- tiers -----------------------------------------------------------------------------------------------------------


async def test_a_pod_that_a_booking_covers_is_booked_until_its_end() -> None:
    reviewed = await booked().create(a_pod(GPU))

    assert reviewed.annotations == {
        "carrel.dev/tier": "booked",
        "carrel.dev/user": ALICE,
        "terminate-at": "2026-11-16T20:00:00Z",
    }
    assert reviewed.object["spec"]["priorityClassName"] == "carrel-gpu"
    assert reviewed.object["spec"]["schedulerName"] == "gpu-scheduler"
    assert reviewed.env() == DEVICES and reviewed.warnings == []


async def test_a_pod_without_a_booking_is_opportunistic_and_may_be_revoked_at_any_time() -> None:
    reviewed = await ReviewedCluster().create(a_pod(GPU))

    assert reviewed.annotations == {
        "carrel.dev/tier": "opportunistic",
        "carrel.dev/user": ALICE,
        "terminate-at": "1900-01-01T08:00:00Z",
    }
    assert reviewed.object["spec"]["priorityClassName"] == "carrel-gpu"
    assert reviewed.container()["resources"]["limits"] == GPU and reviewed.warnings == []


async def test_the_priority_number_of_another_class_is_removed() -> None:
    reviewed = await booked().create(a_pod(GPU, priorityClassName="mine", preemptionPolicy="PreemptLowerPriority"))

    assert "priority" not in reviewed.object["spec"] and "preemptionPolicy" not in reviewed.object["spec"]


async def test_a_priority_class_that_does_not_exist_is_not_set() -> None:
    reviewed = await replace(booked(), classes=()).create(a_pod(GPU))

    assert "priorityClassName" not in reviewed.object["spec"]


@pytest.mark.parametrize(
    ("limits", "named", "expected"),
    [
        pytest.param(GPU, {}, "nvidia", id="a GPU pod that names none"),
        pytest.param(GPU, {"runtimeClassName": "kata"}, "kata", id="a GPU pod whose author has chosen"),
        pytest.param({}, {}, None, id="a pod without a GPU"),
    ],
)
async def test_gpu_pods_get_the_runtime_class_by_which_they_see_their_gpu(
    limits: dict[str, str], named: dict[str, str], expected: str | None
) -> None:
    reviewed = await replace(booked(), runtime_class="nvidia").create(a_pod(limits, **named))

    assert reviewed.object["spec"].get("runtimeClassName") == expected


async def test_a_pod_that_goes_on_without_a_gpu_has_no_runtime_class_of_gpus() -> None:
    cluster = replace(full(), runtime_class="nvidia", options=AdmissionOptions(when_full=WhenFull.CPU))
    reviewed = await cluster.create(a_pod(GPU, runtimeClassName="nvidia-cdi"))

    assert "runtimeClassName" not in reviewed.object["spec"]


OURS = ["carrel-gpu", "carrel-booked", "carrel-opportunistic"]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(
    ("cluster", "pod"),
    [
        pytest.param(booked(), a_pod(), id="without a GPU"),
        pytest.param(ReviewedCluster(namespace={"carrel.dev/exempt": "true"}), a_pod(GPU), id="in an exempt namespace"),
    ],
)
async def test_a_pod_without_a_tier_loses_the_priority_of_a_tier(
    cluster: ReviewedCluster, pod: Json, name: str
) -> None:
    asked = {**pod, "spec": {**pod["spec"], "priorityClassName": name, "priority": 1000, "preemptionPolicy": "Never"}}
    reviewed = await cluster.create(asked)

    assert reviewed.allowed and not reviewed.object["spec"].keys() & {
        "priorityClassName",
        "priority",
        "preemptionPolicy",
    }
    mine = await cluster.create({**pod, "spec": {**pod["spec"], "priorityClassName": "mine"}})
    assert mine.object["spec"]["priorityClassName"] == "mine"


@pytest.mark.parametrize("name", OURS)
async def test_nobody_gains_priority_by_the_class_of_an_earlier_version(name: str) -> None:
    spec = {"priorityClassName": name, "priority": 1000}
    reviewed = await booked().create(a_pod(GPU, **spec))
    missing = await replace(booked(), classes=()).create(a_pod(GPU, **spec))

    assert reviewed.object["spec"]["priorityClassName"] == "carrel-gpu"
    assert "priorityClassName" not in missing.object["spec"] and "priority" not in missing.object["spec"]


async def test_a_booking_that_has_just_ended_does_not_count() -> None:
    cluster = ReviewedCluster(bookings=[a_booking(end=NOON)])

    assert (await cluster.create(a_pod(GPU))).annotations["carrel.dev/tier"] == "opportunistic"


async def test_the_model_of_the_booking_is_not_written_on_the_pod() -> None:
    mine = await booked().create(a_pod(GPU, annotations={"carrel.dev/gpu-model": MODEL}))

    assert mine.annotations["carrel.dev/tier"] == "booked" and mine.annotations["carrel.dev/gpu-model"] == MODEL
    assert "carrel.dev/gpu-model" not in (await booked().create(a_pod(GPU))).annotations


@pytest.mark.parametrize(
    ("cluster", "pod", "words"),
    [
        pytest.param(
            booked(running=[RunningPod("train-7", ALICE)]),
            a_pod(GPU),
            "is in use by lab/train-7",
            id="a pod that runs uses it",
        ),
        pytest.param(
            booked(running=[RunningPod("early", ALICE, gpus=())]),
            a_pod(GPU),
            "is in use by lab/early",
            id="an older pod waits for it",
        ),
        pytest.param(
            ReviewedCluster(
                bookings=[a_booking(gpus=6)],
                nodes=[a_node("n1", 7)],
                running=[RunningPod(f"p{i}", ALICE, gpus=(i,)) for i in range(6)],
            ),
            a_pod(GPU),
            "is in use by lab/p0, lab/p1, lab/p2, lab/p3, lab/p4 and 1 more",
            id="many pods use it",
        ),
        pytest.param(
            booked(), a_pod({"nvidia.com/gpu": "2"}), "is for fewer GPUs than this pod asks for (2 whole GPUs)", id="2"
        ),
        pytest.param(
            booked(),
            a_pod(GPU, annotations={"carrel.dev/gpu-model": "NVIDIA-H100"}),
            "is not for NVIDIA-H100",
            id="another model",
        ),
        pytest.param(
            ReviewedCluster(bookings=[a_booking(shareOf=4)]),
            a_pod(GPU),
            "is for a part of a GPU, and this pod asks for 1 whole GPU",
            id="a part was booked",
        ),
        pytest.param(
            booked(),
            a_pod(GPU, nodeSelector={"room": "other"}),
            "has no GPU now that this pod could have",
            id="the pod may not run where the GPU is",
        ),
    ],
)
async def test_a_pod_beyond_the_booking_is_opportunistic_and_is_told_why(
    cluster: ReviewedCluster, pod: Json, words: str
) -> None:
    reviewed = await cluster.create(pod)

    assert reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    assert [f"{words}; this pod runs on what is free" in each for each in reviewed.warnings] == [True]
    assert reviewed.warnings[0].startswith("your booking of ")


async def test_two_halves_share_a_booked_gpu() -> None:
    half = a_pod(annotations={"gpu-fraction": "0.5"})
    one, two = (RunningPod(name, ALICE, gpus=(0,), mib=8138) for name in ("one", "two"))

    assert (await booked(running=[one]).create(half)).annotations["carrel.dev/tier"] == "booked"
    held = replace(one, gpus=(0,)), replace(two, gpus=(1,))
    assert (await booked(running=held).create(half)).annotations["carrel.dev/tier"] == "booked"
    assert (await booked(running=[replace(one, mib=16276)]).create(half)).annotations["carrel.dev/tier"] != "booked"


async def test_the_booking_of_a_group_covers_its_members() -> None:
    cluster = ReviewedCluster(bookings=[a_booking("", group="vision", members=["Bob@lab.example", ALICE])])

    assert (await cluster.create(a_pod(GPU), "bob@lab.example")).annotations["carrel.dev/tier"] == "booked"
    assert (await cluster.create(a_pod(GPU), "eve@lab.example")).annotations["carrel.dev/tier"] == "opportunistic"


async def test_a_claim_counts_as_it_is_or_as_one_gpu_while_it_does_not_exist() -> None:
    claim = {"metadata": {"name": "c", "namespace": "lab"}, "spec": {"devices": {"count": 2}}}
    pod = a_pod(annotations={"gpu.scheduling/claim": "c"})

    assert (await booked(claims=[claim]).create(pod)).annotations["carrel.dev/tier"] == "opportunistic"
    assert (await booked().create(pod)).annotations["carrel.dev/tier"] == "booked"


async def test_a_booking_object_that_cannot_be_read_entitles_to_nothing() -> None:
    cluster = ReviewedCluster(bookings=[a_booking(gpus=0)])

    assert (await cluster.create(a_pod(GPU))).annotations["carrel.dev/tier"] == "opportunistic"


# --- another booking service -----------------------------------------------------------------------------------------


async def test_another_booking_service_is_asked_about_people_of_whom_the_cluster_knows_no_booking() -> None:
    service = BookedPeople({ALICE: EVENING})
    reviewed = await ReviewedCluster(booking_lookup=service).create(a_pod(GPU))
    assert reviewed.annotations["carrel.dev/tier"] == "booked"
    assert reviewed.annotations["terminate-at"] == "2026-11-16T20:00:00Z"
    assert service.asked == [(ALICE, "lab")]

    await booked(booking_lookup=service).create(a_pod(GPU))
    await ReviewedCluster(booking_lookup=service).create(a_pod(GPU), JOB_CONTROLLER)
    assert service.asked == [(ALICE, "lab")]


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (a_pod(GPU, annotations={"carrel.dev/gpu-model": "NVIDIA-H100"}), "is not for NVIDIA-H100"),
        (a_pod({"nvidia.com/gpu": "2"}), "is for fewer GPUs"),
    ],
    ids=["another model", "more GPUs"],
)
async def test_the_booking_of_another_service_is_worth_one_gpu_of_its_model(pod: Json, words: str) -> None:
    reviewed = await ReviewedCluster(booking_lookup=BookedPeople({ALICE: EVENING})).create(pod)

    assert reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    assert f"your booking of 1 {MODEL} {words}" in reviewed.warnings[0]


async def test_if_the_other_booking_service_is_down_a_pod_is_opportunistic_with_a_warning() -> None:
    silent = ReviewedCluster(booking_lookup=BookedPeople({ALICE: EVENING}, silence="refused"))
    reviewed = await silent.create(a_pod(GPU))

    assert reviewed.allowed and reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    assert reviewed.warnings == ["the booking service does not answer; decided as if no booking were active"]
    assert reviewed.container()["resources"]["limits"] == GPU


async def test_an_answer_of_the_other_booking_service_that_cannot_be_used_is_not_called_silence() -> None:
    odd = ReviewedCluster(booking_lookup=BookedPeople({ALICE: EVENING}, silence="no JSON", was_answered=True))
    reviewed = await odd.create(a_pod(GPU))

    assert reviewed.warnings == [
        "the booking service answers in a form that Carrel cannot use; decided as if no booking were active"
    ]


# --- no GPU free -----------------------------------------------------------------------------------------------------

NOTEBOOK = {"hub.jupyter.org/username": "alice-40lab-2eexample"}
FULL = replace(full(), options=AdmissionOptions())
LATER = NOON + timedelta(minutes=30)


async def test_an_opportunistic_pod_runs_without_a_gpu_when_no_gpu_is_free() -> None:
    two = [{"name": "main", "resources": {"limits": GPU, "requests": {**GPU, "cpu": "1"}}}, {"name": "log"}]
    reviewed = await full().create(a_pod(containers=two, initContainers=[{"name": "init", "env": []}]))

    assert reviewed.container()["resources"] == {"limits": {}, "requests": {"cpu": "1"}}
    assert [reviewed.env(name) for name in ("main", "log", "init")] == [{"NVIDIA_VISIBLE_DEVICES": "none"}] * 3
    assert "carrel.dev/tier" not in reviewed.annotations and "terminate-at" not in reviewed.annotations
    assert len(reviewed.warnings) == 1
    why = "this pod runs without a GPU: on Mon 16 Nov 12:00 UTC, n1 has no room for 1 whole GPU: "
    assert reviewed.warnings[0].startswith(why)


CLAIM = {"metadata": {"name": "c", "namespace": "lab"}, "spec": {"devices": {"count": 1}}}


@pytest.mark.parametrize(
    ("cluster", "pod"),
    [
        pytest.param(FULL, a_pod(GPU, labels=NOTEBOOK), id="a notebook, by its label"),
        pytest.param(FULL, a_pod(GPU, annotations=NOTEBOOK), id="a notebook, by its annotation"),
        pytest.param(FULL, a_pod(GPU, annotations={"terminate-at": "1900-01-01T08:00:00Z"}), id="MAIA's mark"),
        pytest.param(FULL, a_pod(labels=NOTEBOOK, annotations={"gpu-fraction": "0.5"}), id="a part of a GPU"),
        pytest.param(full(), a_pod({"aliyun.com/gpu-mem": "100"}), id="memory of a GPU"),
        pytest.param(
            replace(full(), claims=[CLAIM]), a_pod(annotations={"gpu.scheduling/claim": "c"}), id="a claim that exists"
        ),
        pytest.param(
            replace(full(), claims=[CLAIM]),
            a_pod(GPU, annotations={"gpu.scheduling/claim": "c"}),
            id="a claim, and as many GPUs in its limits",
        ),
        pytest.param(full(), a_pod({"nvidia.com/gpumem": "3000"}), id="HAMi's part of a GPU"),
        pytest.param(replace(FULL, namespace={"carrel.dev/when-full": "cpu"}), a_pod(GPU), id="the namespace says cpu"),
        pytest.param(
            replace(full(when_full=WhenFull.WAIT), namespace={"carrel.dev/when-full": "cpu"}),
            a_pod(GPU),
            id="the namespace says cpu and the setting wait",
        ),
        pytest.param(
            replace(full(), bookings=[a_booking(start=NOON + timedelta(hours=2))]),
            a_pod(GPU),
            id="a booking starts in two hours",
        ),
        pytest.param(
            replace(full(), bookings=[a_booking(start=LATER)]),
            a_pod(GPU, annotations={"carrel.dev/gpu-model": "NVIDIA-H100"}),
            id="a booking of another model starts soon",
        ),
        pytest.param(
            ReviewedCluster(options=AdmissionOptions(when_full=WhenFull.CPU), nodes=[a_node("n1", 1)]),
            a_pod({"nvidia.com/gpu": "2"}),
            id="more than any node has",
        ),
        pytest.param(
            replace(full(), running=[RunningPod("mine", ALICE)], opportunistic_gpus=1),
            a_pod(GPU),
            id="more than a person may hold without a booking",
        ),
        pytest.param(
            ReviewedCluster(
                options=AdmissionOptions(when_full=WhenFull.CPU),
                bookings=[a_booking("bob@lab.example")],
                nodes=[a_node("n1", 1)],
                running=[RunningPod("booked", "bob@lab.example", gpus=())],
            ),
            a_pod(GPU),
            id="a booked pod waits for the last one",
        ),
    ],
)
async def test_a_pod_runs_on_cpu_when_no_gpu_is_free_for_it(cluster: ReviewedCluster, pod: Json) -> None:
    reviewed = await cluster.create(pod)

    assert reviewed.allowed and reviewed.env() == {"NVIDIA_VISIBLE_DEVICES": "none"}
    assert reviewed.warnings[-1].startswith("this pod runs without a GPU: ")
    assert reviewed.annotations["carrel.dev/runs-without-gpu"] == reviewed.warnings[-1]
    assert (await cluster.create(reviewed.object)).patch == []


async def test_a_pod_that_runs_on_cpu_asks_for_no_node_with_a_gpu_any_more() -> None:
    has_gpu = {"key": "nvidia.com/gpu.present", "operator": "Exists"}
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [has_gpu]}]}
    }
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    pod = a_pod(
        GPU,
        nodeSelector={"cloud.google.com/gke-accelerator": "nvidia-l4", "room": "b12"},
        affinity={"nodeAffinity": required},
        tolerations=tolerations,
    )

    reviewed = await full().create(pod)

    assert reviewed.warnings[-1].startswith("this pod runs without a GPU: ")
    assert reviewed.object["spec"]["nodeSelector"] == {"room": "b12"}
    assert not reviewed.object["spec"].get("affinity")
    assert reviewed.object["spec"]["tolerations"] == tolerations


@pytest.mark.parametrize("claims", [[CLAIM], []], ids=["the claim exists", "the claim comes later"])
async def test_a_claim_and_as_many_gpus_in_the_limits_are_one_request(claims: list[Json]) -> None:
    containers = [{"name": "main", "resources": {"limits": GPU}}, {"name": "log"}]
    cluster = ReviewedCluster(claims=claims)
    reviewed = await cluster.create(a_pod(annotations={"gpu.scheduling/claim": "c"}, containers=containers))

    assert reviewed.allowed
    assert reviewed.env("main") == DEVICES
    assert reviewed.env("log") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert (await cluster.create(reviewed.object)).patch == []


async def test_a_pod_that_asks_for_mig_slices_is_refused_unless_its_namespace_is_exempt() -> None:
    pod = a_pod({"nvidia.com/mig-1g.5gb": "1"})
    refused = await ReviewedCluster().create(pod)
    assert not refused.allowed
    assert "asks for nvidia.com/mig-1g.5gb: Carrel does not manage MIG slices" in refused.message

    assert (await ReviewedCluster(namespace={"carrel.dev/exempt": "true"}).create(pod)).patch == []
    assert (await ReviewedCluster().create(a_pod({"nvidia.com/mig-1g.5gb": "0"}))).patch == []


async def test_a_claim_and_another_number_of_gpus_in_the_limits_are_refused() -> None:
    pod = a_pod({"nvidia.com/gpu": "2"}, annotations={"gpu.scheduling/claim": "c"})
    reviewed = await ReviewedCluster(claims=[CLAIM]).create(pod)

    assert not reviewed.allowed
    assert "of 1 GPU and asks for 2 by nvidia.com/gpu; make the numbers equal" in reviewed.message


@pytest.mark.parametrize(
    ("cluster", "pod"),
    [
        pytest.param(full(when_full=WhenFull.WAIT), a_pod(GPU, labels=NOTEBOOK), id="the setting says wait"),
        pytest.param(FULL, a_pod(GPU), id="by default, a pod that is no notebook"),
        pytest.param(
            FULL,
            a_pod(GPU, annotations={"terminate-at": "1900-01-01T08:00:00Z", "carrel.dev/tier": "opportunistic"}),
            id="what Carrel itself wrote in a first review is not MAIA's mark",
        ),
        pytest.param(
            replace(full(), namespace={"carrel.dev/when-full": "wait"}), a_pod(GPU), id="the namespace says wait"
        ),
        pytest.param(full(), a_pod(annotations={"gpu.scheduling/claim": "c"}), id="the claim does not exist yet"),
        pytest.param(full(), a_pod(GPU, annotations={"pod-group-name": "g"}), id="a member of a gang"),
        pytest.param(full(), a_pod(GPU, schedulingGates=[{"name": "a.example/quota"}]), id="it does not run now"),
        pytest.param(replace(full(), bookings=[a_booking()]), a_pod(GPU), id="it is booked"),
        pytest.param(
            replace(full(), bookings=[a_booking(start=LATER)]), a_pod(GPU), id="a booking of its person starts soon"
        ),
        pytest.param(
            replace(full(), bookings=[a_booking(start=NOON + timedelta(days=1))]),
            a_pod(GPU, annotations={"carrel.dev/booking": "next"}),
            id="it is made for a booking",
        ),
        pytest.param(
            replace(full(), namespace={"carrel.dev/exempt": "true"}), a_pod(GPU), id="its namespace is exempt"
        ),
        pytest.param(replace(full(), running=()), a_pod(GPU), id="a GPU is free"),
        pytest.param(
            replace(full(), running=[RunningPod("half", gpus=(0, 1, 2), mib=8138)]),
            a_pod(annotations={"gpu-fraction": "0.5"}),
            id="half of a GPU is free",
        ),
        pytest.param(replace(full(), nodes=()), a_pod(GPU), id="no agent has reported a GPU yet"),
    ],
)
async def test_a_pod_keeps_its_request(cluster: ReviewedCluster, pod: Json) -> None:
    reviewed = await cluster.create(pod)

    assert reviewed.allowed and reviewed.object["spec"]["schedulerName"] == "gpu-scheduler"
    assert (await cluster.create(reviewed.object)).patch == []


async def test_what_a_namespace_says_counts_only_if_it_can_be_read() -> None:
    odd = replace(full(), namespace={"carrel.dev/when-full": "never"})
    reviewed = await odd.create(a_pod(GPU))

    assert reviewed.env() == {"NVIDIA_VISIBLE_DEVICES": "none"}
    said = "namespace lab says carrel.dev/when-full: 'never', which is neither cpu nor wait; it does not count"
    assert said in reviewed.warnings


# --- the owner -------------------------------------------------------------------------------------------------------

JUPYTER = {"hub.jupyter.org/username": "bob-40lab-2eexample"}


@pytest.mark.parametrize(
    ("user", "pod", "who"),
    [
        pytest.param(SPAWNER, a_pod(GPU, labels=JUPYTER), "bob@lab.example", id="a spawner's label"),
        pytest.param(
            SPAWNER,
            a_pod(GPU, labels=JUPYTER, annotations={"hub.jupyter.org/username": "eve@lab.example"}),
            "eve@lab.example",
            id="a spawner's annotation wins over its label",
        ),
        pytest.param(ALICE, a_pod(GPU, labels=JUPYTER), ALICE, id="another user's label is ignored"),
        pytest.param(JOB_CONTROLLER, a_pod(GPU, labels=JUPYTER), "owner@lab.example", id="the namespace's owner"),
        pytest.param(SPAWNER, a_pod(GPU), "owner@lab.example", id="a spawner that names no user"),
        pytest.param(
            SPAWNER,
            a_pod(GPU, labels={"hub.jupyter.org/username": "-ff"}),
            "owner@lab.example",
            id="a spawner whose label cannot be read",
        ),
        pytest.param("oidc:carol", a_pod(GPU), "carol", id="without the prefix of the API server"),
    ],
)
async def test_whose_pod_it_is(user: str, pod: Json, who: str) -> None:
    cluster = ReviewedCluster(namespace={"owner": "owner@lab.example"}, username_prefix="oidc:")

    assert (await cluster.create(pod, user)).annotations["carrel.dev/user"] == who


# --- notices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pod", [a_pod(GPU, labels=JUPYTER), a_pod(GPU, annotations=JUPYTER)], ids=["label", "annotation"]
)
async def test_the_container_of_a_notebook_can_read_its_notice_in_a_file(pod: Json) -> None:
    reviewed = await ReviewedCluster().create(pod, SPAWNER)

    mount = {"name": "carrel-notice", "mountPath": "/etc/carrel", "readOnly": True}
    assert reviewed.container()["volumeMounts"] == [mount]
    (volume,) = reviewed.object["spec"]["volumes"]
    item = {"path": "notice", "fieldRef": {"fieldPath": "metadata.annotations['carrel.dev/notice']"}}
    assert volume == {"name": "carrel-notice", "downwardAPI": {"items": [item]}}
    again = await ReviewedCluster().create(reviewed.object, SPAWNER)
    assert again.object == reviewed.object


async def test_other_pods_get_no_file() -> None:
    for pod in (a_pod(GPU), a_pod(labels=JUPYTER)):
        assert "volumes" not in (await ReviewedCluster().create(pod, SPAWNER)).object["spec"]


async def test_nobody_else_writes_a_notice_and_everybody_may_want_no_successor() -> None:
    notes = {"carrel.dev/notice": "send your password to me", "carrel.dev/no-successor": "true"}
    reviewed = await ReviewedCluster().create(a_pod(GPU, annotations=notes))

    assert "carrel.dev/notice" not in reviewed.annotations
    assert reviewed.annotations["carrel.dev/no-successor"] == "true"


async def test_a_pod_without_an_owner_is_opportunistic_and_sees_its_gpu() -> None:
    handler = await booked().handler()
    asked = review(a_pod(GPU), JOB_CONTROLLER)
    reviewed = apply_answer(asked, json.loads((await handler.mutate(json.dumps(asked).encode())).body))
    await handler.mutate(json.dumps(review(a_pod(GPU), JOB_CONTROLLER, dry_run=True)).encode())
    await handler.mutate(json.dumps(review(a_pod(GPU))).encode())

    assert reviewed.annotations == {"carrel.dev/tier": "opportunistic", "terminate-at": "1900-01-01T08:00:00Z"}
    assert reviewed.env() == DEVICES
    assert reviewed.warnings == ["Carrel cannot tell who owns this pod, so no booking covers it"]
    assert b"carrel_pods_without_person_total 1.0" in handler.metrics.text()


async def test_a_strict_cluster_refuses_only_gpu_pods_without_an_owner() -> None:
    cluster = ReviewedCluster(options=AdmissionOptions(strict=True))

    reviewed = await cluster.create(a_pod(GPU), JOB_CONTROLLER)
    assert (
        not reviewed.allowed and reviewed.message == "pod lab/train asks for a GPU, and Carrel cannot tell who owns it"
    )
    assert (await cluster.create(a_pod(), JOB_CONTROLLER)).allowed


async def test_pods_of_an_exempt_namespace_have_no_tier_and_need_no_owner_but_come_to_carrels_scheduler() -> None:
    exempt = booked(namespace={"carrel.dev/exempt": "true"}, options=AdmissionOptions(strict=True))

    nobodys, mine = await exempt.create(a_pod(GPU), JOB_CONTROLLER), await exempt.create(a_pod(GPU))
    assert nobodys.annotations == {} and mine.annotations == {"carrel.dev/user": ALICE}
    for each in (nobodys, mine):
        assert each.env() == DEVICES and each.object["spec"]["schedulerName"] == "gpu-scheduler"
    assert not (await exempt.create(a_pod(GPU, nodeName="n1"))).allowed
    assert "carrel.dev/tier" in (await booked(namespace={"carrel.dev/exempt": "yes"}).create(a_pod(GPU))).annotations


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        pytest.param(a_pod(GPU, nodeName="n1"), "names its node (n1); leave that to the scheduler", id="a node"),
        pytest.param(a_pod(GPU, schedulerName="mine"), "wants the scheduler 'mine'", id="another scheduler"),
        pytest.param(a_pod(GPU, annotations={"gpu-fraction": "0.5"}), "in 2 ways", id="two dialects"),
        pytest.param(a_pod(annotations={"gpu-fraction": "2"}), "a number between 0 and 1", id="too much of a GPU"),
        pytest.param(a_pod({"nvidia.com/gpu": "-1"}), "nvidia.com/gpu", id="a negative number"),
        pytest.param(a_pod({"nvidia.com/gpu": "0.5"}), "nvidia.com/gpu", id="half of an nvidia.com/gpu"),
        pytest.param(a_pod({"nvidia.com/gpu": "9223372036854775808"}), "nvidia.com/gpu", id="2^63 GPUs"),
        pytest.param(a_pod(annotations={"gpu.scheduling/claim": ""}), "GpuClaim", id="a claim without a name"),
        pytest.param(
            a_pod(GPU, annotations={"carrel.dev/gpu-model": "a"}, nodeSelector={"nvidia.com/gpu.product": "b"}),
            "asks for two models",
            id="two models",
        ),
    ],
)
async def test_a_gpu_pod_that_cannot_be_placed_is_refused_with_the_reason(pod: Json, why: str) -> None:
    reviewed = await ReviewedCluster().create(pod)

    assert not reviewed.allowed and reviewed.code == 422
    assert why in reviewed.message


@pytest.mark.parametrize("scheduler", ["", "default-scheduler", "kai-scheduler", "gpu-scheduler"])
async def test_a_pod_with_a_default_scheduler_gets_the_scheduler_that_asks_carrel(scheduler: str) -> None:
    assert (await ReviewedCluster().create(a_pod(GPU, schedulerName=scheduler))).object["spec"][
        "schedulerName"
    ] == "gpu-scheduler"


async def test_a_quantity_of_zero_asks_for_nothing() -> None:
    assert (await ReviewedCluster().create(a_pod({"nvidia.com/gpu": "0"}, nodeName="n1"))).patch == []


# --- pods that are not changed, or run without a GPU -----------------------------------------------------------------


async def test_a_pod_that_asks_for_no_gpu_is_not_changed() -> None:
    reviewed = await full(strict=True).create(a_pod({"cpu": "1"}, nodeName="n1", schedulerName="mine"))

    assert reviewed.allowed and reviewed.patch == [] and reviewed.warnings == []


async def test_if_the_setting_says_so_every_pod_without_a_gpu_is_told_to_see_none() -> None:
    reviewed = await ReviewedCluster(options=AdmissionOptions(hide_from=HideFrom.ALL_PODS)).create(a_pod())

    assert reviewed.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize("user", ["system:serviceaccount:carrel:carrel-controller", "root"])
async def test_pods_that_carrel_creates_are_left_alone(user: str) -> None:
    reviewed = await ReviewedCluster().create(a_pod(GPU, annotations=PROTECTED, nodeName="n1"), user)

    assert reviewed.allowed and reviewed.patch == []


async def test_other_programs_in_carrels_namespace_are_not_carrel() -> None:
    """MAIA's own terminator makes a pod again with everything that was on it."""
    reviewed = await ReviewedCluster().create(
        a_pod(GPU, annotations={"carrel.dev/devices": "GPU-1"}), "system:serviceaccount:carrel:pod-terminator"
    )

    assert "carrel.dev/devices" not in reviewed.annotations


async def test_the_replacement_of_a_pod_that_lost_its_gpu_runs_without_a_gpu() -> None:
    record = HandOver("gone", "lab/train-1", Why.REVOKED, NOON, NOON, HandOverPhase.ENDING, owner="job-uid")
    reviewed = await ReviewedCluster(handed_over={"job-uid": record}).create(
        a_pod(GPU, owner="job-uid"), JOB_CONTROLLER
    )

    assert reviewed.container()["resources"] == {"limits": {}}
    assert reviewed.env() == {"NVIDIA_VISIBLE_DEVICES": "none"}
    why = "the one that it had was needed for a booked pod on Mon 16 Nov 12:00 UTC"
    assert reviewed.annotations == {
        "carrel.dev/handed-over": '{"at":"2026-11-16T12:00:00Z","why":"revoked","from":"gone"}',
        "carrel.dev/runs-without-gpu": f"this pod runs without a GPU: {why}",
        "carrel.dev/asked-for": '{"gpus": 1}',
    }
    assert (await ReviewedCluster(handed_over={"job-uid": record}).create(a_pod(GPU, owner="other"))).env() == DEVICES
    assert (await ReviewedCluster(handed_over={"job-uid": record}).create(reviewed.object, JOB_CONTROLLER)).patch == []


async def test_a_user_cannot_mark_a_pod_as_a_successor() -> None:
    """Else a record would be closed by a pod that is no successor, and the next pod of its owner had a GPU again."""
    mark = {"carrel.dev/handed-over": '{"at":"2026-11-16T12:00:00Z","why":"revoked","from":"gone"}'}
    elsewhere = HandOver("gone", "other/train-1", Why.REVOKED, NOON, NOON, HandOverPhase.ENDING, owner="job-uid")

    assert (await ReviewedCluster().create(a_pod(annotations=mark))).annotations == {}
    assert (
        await ReviewedCluster(handed_over={"job-uid": elsewhere}).create(a_pod(GPU, owner="job-uid"))
    ).env() == DEVICES


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "gpu-scheduler"])
async def test_a_pod_that_runs_without_a_gpu_gets_the_default_scheduler(scheduler: str) -> None:
    assert "schedulerName" not in (await full().create(a_pod(GPU, schedulerName=scheduler))).object["spec"]


# --- forged keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [GPU, {}], ids=["a GPU pod", "another pod"])
@pytest.mark.parametrize("key", [*PROTECTED, *PROTECTED_LABELS])
async def test_a_forged_key_is_removed(key: str, limits: dict[str, str]) -> None:
    group = "annotations" if key in PROTECTED else "labels"
    forged = PROTECTED.get(key) or PROTECTED_LABELS[key]

    cluster = ReviewedCluster(namespace={"carrel.dev/exempt": "true"})
    reviewed = await cluster.create(a_pod(limits, **{group: {key: forged, "mine": "stays"}}), JOB_CONTROLLER)

    assert reviewed.object["metadata"][group] == {"mine": "stays"}


def test_every_protected_key_is_tested() -> None:
    assert PROTECTED.keys() >= protected_keys.annotations() and PROTECTED_LABELS.keys() >= ALL.written_labels


# --- the seal --------------------------------------------------------------------------------------------------------


async def test_an_admitted_gpu_pod_has_a_seal_and_keeps_it_in_a_second_review() -> None:
    later = NOON
    cluster = replace(booked(), seal=Seal((b"key",)), now=lambda: later)

    first = await cluster.create(a_pod(GPU))
    later = NOON + timedelta(seconds=30)
    again = await cluster.create(first.object)

    assert first.annotations["carrel.dev/admitted"].startswith("2026-11-16T12:00:00Z ")
    assert again.patch == []


async def test_of_pods_without_a_gpu_only_those_that_asked_for_one_have_a_seal() -> None:
    sealed = replace(full(), seal=Seal((b"key",)))
    assert "carrel.dev/admitted" in (await sealed.create(a_pod(GPU))).annotations
    assert (await sealed.create(a_pod())).patch == []


# --- reviews ---------------------------------------------------------------------------------------------------------


async def test_an_old_version_and_a_dry_run_are_answered_like_any_other_review() -> None:
    for changes in ({"version": "v1beta1"}, {"dry_run": True}):
        assert (await ReviewedCluster().create(a_pod(GPU), **changes)).env() == DEVICES


async def test_other_kinds_and_other_operations_are_allowed() -> None:
    assert (await ReviewedCluster().create({"metadata": {}}, kind="Service")).patch == []
    assert (await ReviewedCluster().create(a_pod(GPU), operation="UPDATE", old=a_pod(GPU))).patch == []
    assert (await ReviewedCluster().ask(review(None, old=a_pod(GPU), operation="DELETE"))).allowed
