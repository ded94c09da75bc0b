"""Hand-over to CPU of notebooks: their Services stay, their owner may stop them meanwhile, and is told what happens."""

import contextlib
import json
from base64 import b64encode
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.hand_over_record import controller_of
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch, Selection
from carrel.kubernetes.objects.resources import CONFIG_MAPS, EVENTS, NAMESPACES, PODS, SECRETS, SERVICES
from carrel.lifecycle.handing_over.hand_over import HandOverResult
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import (
    OF_A_HUB,
    OPPORTUNISTIC,
    WHOLE,
    TierController,
    a_service_of,
    an_opportunistic_pod,
    an_unschedulable_booked_pod,
    catch_up,
    end_deleted,
    event_reasons,
    hand_over_records,
    owners_of_services,
    pods_of,
    settle,
)

STOP = MergePatch({"metadata": {"annotations": {"carrel.dev/no-successor": "true"}}})
"""What a hub writes on a pod that its user stops."""


@contextlib.asynccontextmanager
async def a_lab_with_a_victim(**spec: Any) -> Any:
    """A notebook with a Service of its own, on the only GPU, which a booked pod needs."""
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        pod = await an_opportunistic_pod(lab, replica, "notebook", **{"labels": OF_A_HUB, **spec})
        await a_service_of(lab, pod)
        await an_unschedulable_booked_pod(lab, "urgent")
        await catch_up(lab, replica)
        yield lab, replica, pod


@contextlib.asynccontextmanager
async def an_ending_notebook(**spec: Any) -> Any:
    """Carrel has deleted it, and its containers still run."""
    async with a_lab_with_a_victim(**spec) as (lab, replica, pod):
        controller = TierController(replica)
        await controller.round()
        assert (await lab.client.get(PODS, "notebook", "lab"))["metadata"]["deletionGracePeriodSeconds"] == 30
        yield lab, replica, controller, pod


# --- what it owns ----------------------------------------------------------------------------------------------------


async def test_the_service_of_a_notebook_leads_to_its_successor() -> None:
    async with a_lab_with_a_victim() as (lab, replica, pod):
        await settle(lab, TierController(replica))

        successor = (await pods_of(lab))["notebook"]
        assert successor.metadata.uid != pod["metadata"]["uid"]
        assert await owners_of_services(lab) == {"notebook": [successor.metadata.uid]}


async def test_another_service_of_that_name_is_left_alone() -> None:
    async with an_ending_notebook() as (lab, _, controller, __):
        await lab.client.delete(SERVICES, "notebook", "lab")
        body = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "notebook"},
            "spec": {"ports": [{"port": 1}]},
        }
        await lab.client.create(SERVICES, body, "lab")

        await settle(lab, controller)

        assert await owners_of_services(lab) == {"notebook": []}
        assert controller.results == [HandOverResult.HANDED_OVER]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"labels": {}}, id="of no hub"),
        pytest.param({"annotations": {**OPPORTUNISTIC, "runai/shared-gpu-configmap": "x"}}, id="with maps of KAI"),
    ],
)
async def test_what_other_pods_own_goes_with_them(spec: Json) -> None:
    async with a_lab_with_a_victim(**spec) as (lab, replica, _):
        controller = TierController(replica)
        await settle(lab, controller)

        assert controller.results == [HandOverResult.HANDED_OVER]
        assert await owners_of_services(lab) == {}


# --- somebody else deletes it ----------------------------------------------------------------------------------------


async def check_it_is_gone_for_good(lab: Lab) -> None:
    assert "notebook" not in await pods_of(lab)
    assert await owners_of_services(lab) == {}, "nobody needs it any more"
    assert await hand_over_records(lab) == []
    assert (await pods_of(lab))["urgent"].spec.node_name == "n1"


async def test_a_notebook_that_its_user_stops_while_it_is_ending_does_not_come_back() -> None:
    """JupyterHub deletes with a grace of one second."""
    async with an_ending_notebook() as (lab, _, controller, __):
        await lab.client.delete(PODS, "notebook", "lab", how=DeleteOptions(grace_seconds=1))

        await settle(lab, controller)

        await check_it_is_gone_for_good(lab)
        assert controller.results == [HandOverResult.WITHDRAWN]


async def test_a_notebook_of_which_the_hub_says_so_does_not_come_back() -> None:
    async with an_ending_notebook() as (lab, _, controller, __):
        await lab.client.patch(PODS, "notebook", STOP, "lab")

        await settle(lab, controller)

        await check_it_is_gone_for_good(lab)


async def test_it_does_not_come_back_if_it_is_gone_before_it_is_read_again() -> None:
    async with an_ending_notebook() as (lab, replica, controller, __):
        stopped = await lab.client.delete(PODS, "notebook", "lab", how=DeleteOptions(grace_seconds=1))
        await replica.sees(stopped)
        await end_deleted(lab)

        await settle(lab, controller)

        await check_it_is_gone_for_good(lab)


async def test_the_next_leader_knows_that_it_was_stopped() -> None:
    async with an_ending_notebook() as (lab, _, controller, __):
        await lab.client.delete(PODS, "notebook", "lab", how=DeleteOptions(grace_seconds=1))
        await controller.round()

        async with lab.replica() as other:
            await end_deleted(lab)
            await settle(lab, TierController(other))

        await check_it_is_gone_for_good(lab)


async def test_a_second_deletion_with_the_same_grace_cannot_be_seen() -> None:
    async with an_ending_notebook() as (lab, _, controller, pod):
        await lab.client.delete(PODS, "notebook", "lab", how=DeleteOptions(grace_seconds=30))

        await settle(lab, controller)

        assert (await pods_of(lab))["notebook"].metadata.uid != pod["metadata"]["uid"]


async def test_a_pod_that_wants_no_successor_from_the_start_is_only_ended() -> None:
    notes = {**OPPORTUNISTIC, "carrel.dev/no-successor": "true"}
    async with a_lab_with_a_victim(annotations=notes) as (lab, replica, _):
        await settle(lab, TierController(replica))

        await check_it_is_gone_for_good(lab)


async def test_any_other_value_says_nothing() -> None:
    notes = {**OPPORTUNISTIC, "carrel.dev/no-successor": "perhaps"}
    async with a_lab_with_a_victim(annotations=notes) as (lab, replica, pod):
        await settle(lab, TierController(replica))

        assert (await pods_of(lab))["notebook"].metadata.uid != pod["metadata"]["uid"]


# --- the manifest ----------------------------------------------------------------------------------------------------


def with_token(token: str) -> list[Json]:
    env = [{"name": "JUPYTERHUB_API_TOKEN", "value": token}]
    return [{"name": "main", "image": "work", "env": env, "resources": {"limits": {"nvidia.com/gpu": "1"}}}]


async def test_a_token_in_the_environment_is_in_a_secret_that_goes_with_its_record() -> None:
    async with an_ending_notebook(containers=with_token("only-for-ada")) as (lab, _, controller, pod):
        record = await lab.client.get(CONFIG_MAPS, f"handover-{pod['metadata']['uid']}", "carrel")
        assert "only-for-ada" not in json.dumps(record)
        secret = await lab.client.get(SECRETS, record["data"]["manifest"], "carrel")
        assert secret["type"] == "carrel.dev/handover"

        await settle(lab, controller)

        assert await hand_over_records(lab) == []
        successor = await lab.client.get(PODS, "notebook", "lab")
        assert "only-for-ada" in json.dumps(successor["spec"]["containers"][0]["env"])


async def test_a_pod_whose_manifest_is_too_large_is_ended_and_its_owner_is_told_why() -> None:
    noise = b64encode(Random(1).randbytes(1_050_000)).decode()
    async with a_lab_with_a_victim(containers=with_token(noise)) as (lab, replica, _):
        controller = TierController(replica)
        await settle(lab, controller)

        await check_it_is_gone_for_good(lab)
        assert controller.results == [HandOverResult.UNWANTED]
        assert "NotHandedOver notebook" in await event_reasons(lab)


async def test_a_manifest_that_becomes_large_only_as_text_is_kept() -> None:
    """Control characters take six times their size in JSON."""
    async with a_lab_with_a_victim(containers=with_token("\x01" * 300_000)) as (lab, replica, pod):
        controller = TierController(replica)
        await settle(lab, controller)

        assert controller.results == [HandOverResult.HANDED_OVER]
        successor = await lab.client.get(PODS, "notebook", "lab")
        assert successor["metadata"]["uid"] != pod["metadata"]["uid"]
        assert "\x01" * 300_000 in [each.get("value") for each in successor["spec"]["containers"][0]["env"]]


async def test_args_of_control_characters_are_kept() -> None:
    noise = "".join(Random(1).choices([chr(number) for number in range(1, 32)], k=180_000))
    container = {"name": "main", "image": "work", "args": [noise], "resources": {"limits": WHOLE}}
    async with a_lab_with_a_victim(containers=[container]) as (lab, replica, _):
        controller = TierController(replica)
        await settle(lab, controller)

        assert controller.results == [HandOverResult.HANDED_OVER]
        assert (await lab.client.get(PODS, "notebook", "lab"))["spec"]["containers"][0]["args"] == [noise]


async def test_nobody_keeps_a_gpu_by_filling_the_record_of_the_hand_over() -> None:
    """With the name of the user, and with Services."""
    forged = {**OPPORTUNISTIC, "carrel.dev/user": "\x01" * 200_000}
    async with a_lab_with_a_victim(annotations=forged) as (lab, replica, pod):
        for number in range(120):
            await a_service_of(lab, pod, f"service-{number}")
        controller = TierController(replica)
        await catch_up(lab, replica)
        await controller.round()
        (record,) = (await lab.client.list(CONFIG_MAPS, Selection("carrel"))).items
        assert sum(map(len, record.data.values())) < 20_000

        await settle(lab, controller)

        assert controller.results == [HandOverResult.HANDED_OVER]


async def test_an_owner_whose_uid_is_none_of_kubernetes_counts_as_no_controller() -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x" * 500_000, "controller": True}
    assert controller_of({"metadata": {"ownerReferences": [owner]}}) == ""


async def test_a_manifest_that_somebody_deleted_holds_nobody_up() -> None:
    async with an_ending_notebook() as (lab, _, controller, __):
        for secret in (await lab.client.list(SECRETS, Selection("carrel"))).items:
            await lab.client.delete(SECRETS, secret.metadata.name, "carrel")

        await settle(lab, controller)

        await check_it_is_gone_for_good(lab)


# --- time and notices ------------------------------------------------------------------------------------------------


async def notice(lab: Lab, name: str = "notebook") -> str:
    return (await lab.annotations(name)).get("carrel.dev/notice", "")


WARNING = (
    "your GPU is needed for a booked pod: this pod ends at Mon 16 Nov 12:02 UTC and is created again without a GPU;"
    " save your work now"
)


async def test_a_notebook_has_two_minutes_and_says_so_itself() -> None:
    async with a_lab_with_a_victim() as (lab, replica, pod):
        controller = TierController(replica, notebook_grace_s=120)
        await settle(lab, controller)
        assert await notice(lab) == WARNING
        assert (await lab.annotations("notebook"))["carrel.dev/leave-by"] == "2026-11-16T12:02:00Z"
        (kept,) = [each for each in (await lab.client.list(EVENTS, Selection("lab"))).items if each.reason == "GPUKept"]
        told = "a GPU is kept for this pod; it is still in use: lab/notebook has to end by Mon 16 Nov 12:02 UTC"
        assert (kept.involved_object.name, kept.message) == ("urgent", told)

        lab.clock.now += timedelta(minutes=2)
        await settle(lab, controller)

        lost = "this pod lost its GPU at Mon 16 Nov 12:02 UTC for a booked pod; it runs without a GPU now"
        assert await notice(lab) == lost
        assert (await pods_of(lab))["notebook"].metadata.uid != pod["metadata"]["uid"]


async def test_other_pods_do_not_have_the_time_of_notebooks() -> None:
    async with a_lab_with_a_victim(labels={}) as (lab, replica, pod):
        await settle(lab, TierController(replica, notebook_grace_s=120))

        assert (await pods_of(lab))["notebook"].metadata.uid != pod["metadata"]["uid"]


async def test_an_admin_sets_the_time_for_a_namespace() -> None:
    async with a_lab_with_a_victim(labels={}) as (lab, replica, _):
        await set_grace(lab, replica, "5m")

        await settle(lab, TierController(replica))

        assert (await lab.annotations("notebook"))["carrel.dev/leave-by"] == "2026-11-16T12:05:00Z"


async def set_grace(lab: Lab, replica: Replica, text: str) -> None:
    notes = {"metadata": {"annotations": {"carrel.dev/revocation-grace": text}}}
    await lab.client.patch(NAMESPACES, "lab", MergePatch(notes))

    def is_known() -> bool:
        found = replica.namespaces.store.get("lab")
        return found is not None and found.metadata.annotations.get("carrel.dev/revocation-grace") == text

    await eventually(is_known)


async def test_the_notice_goes_when_a_booking_covers_the_pod_after_all() -> None:
    notes = {**OPPORTUNISTIC, "carrel.dev/user": "ada@lab.example"}
    async with a_lab_with_a_victim(annotations=notes) as (lab, replica, pod):
        controller = TierController(replica, notebook_grace_s=120)
        await settle(lab, controller)
        assert await notice(lab) == WARNING

        await lab.book("ada@lab.example")
        await settle(lab, controller)

        assert (await pods_of(lab))["notebook"].metadata.uid == pod["metadata"]["uid"]
        assert await notice(lab) == ""


async def test_the_notice_of_a_bookings_end_goes_when_the_booking_is_extended() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await lab.book("ada@lab.example", end=lab.clock.now + timedelta(minutes=50))
        notes = {**OPPORTUNISTIC, "carrel.dev/user": "ada@lab.example"}
        await an_opportunistic_pod(lab, replica, "notebook", annotations=notes, labels=OF_A_HUB)
        controller = TierController(replica)
        for _ in range(2):
            await settle(lab, controller)
        ends = "your booking ends at Mon 16 Nov 12:50 UTC: this pod ends then and is created again without a GPU"
        assert (await notice(lab)).startswith(ends)

        later = {"spec": {"end": "2026-11-20T12:00:00Z"}}
        await lab.client.patch(BOOKINGS, "booking-ada", MergePatch(later))
        for _ in range(2):
            await settle(lab, controller)

        assert await notice(lab) == ""
