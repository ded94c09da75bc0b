"""Whose pod admission says it is, and what that person can read in it."""

import json

import pytest

from carrel.admission.options import AdmissionOptions
from tests.kit.reviews import (
    ALICE,
    DEVICES,
    GPU,
    JOB_CONTROLLER,
    SPAWNER,
    Json,
    ReviewedCluster,
    a_pod,
    apply_answer,
    booked,
    review,
)

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
    keys = {"notice": "carrel.dev/notice", "leave-by": "carrel.dev/leave-by", "terminate-at": "terminate-at"}
    items = [{"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}} for path, key in keys.items()]
    assert volume == {"name": "carrel-notice", "downwardAPI": {"items": items}}
    again = await ReviewedCluster().create(reviewed.object, SPAWNER)
    assert again.object == reviewed.object


async def test_other_pods_get_no_file() -> None:
    for pod in (a_pod(GPU), a_pod(labels=JUPYTER)):
        assert "volumes" not in (await ReviewedCluster().create(pod, SPAWNER)).object["spec"]


async def test_where_pods_of_nobody_keep_their_gpus_they_have_no_tier() -> None:
    cluster = ReviewedCluster(nobodys_pods_keep=True)
    nobodys, mine = await cluster.create(a_pod(GPU), JOB_CONTROLLER), await cluster.create(a_pod(GPU))
    made_for_a_booking = a_pod(GPU, annotations={"carrel.dev/booking": "next"})

    assert nobodys.annotations == {} and nobodys.object["spec"]["schedulerName"] == "gpu-scheduler"
    assert nobodys.warnings == ["Carrel cannot tell who owns this pod, so no booking covers it"]
    assert mine.annotations["carrel.dev/tier"] == "opportunistic"
    assert not (await cluster.create(made_for_a_booking, JOB_CONTROLLER)).allowed
    assert (await cluster.create(nobodys.object, JOB_CONTROLLER)).patch == []


async def test_who_only_says_whose_pod_it_is_does_not_keep_its_gpu() -> None:
    """Anybody could write a hub's label, and keep a GPU for ever."""
    cluster = ReviewedCluster(nobodys_pods_keep=True)
    forged = await cluster.create(a_pod(GPU, labels=JUPYTER), "system:serviceaccount:lab:default")

    assert forged.annotations["carrel.dev/tier"] == "opportunistic"


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
