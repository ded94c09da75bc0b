"""Whose notebook it is: only a listed hub is believed, its users are people who book, and an admin learns the rest."""

import json
import logging

import pytest

from carrel.admission.handlers import MOST_NAMES
from carrel.admission.options import AdmissionOptions
from carrel.dialects.jupyter import HubPeople
from tests.kit.reviews import (
    ALICE,
    GPU,
    JOB_CONTROLLER,
    SPAWNER,
    Json,
    ReviewedCluster,
    a_booking,
    a_pod,
    full,
    review,
)

UNLISTED = "system:serviceaccount:jhub2:hub"
NAME = "hub.jupyter.org/username"
LAB = HubPeople("lab.example", {"eve": "evelyn@elsewhere.example"})


def a_notebook(user: str, **more: str) -> Json:
    return a_pod(GPU, annotations={NAME: user, **more})


# --- a listed hub ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "who"),
    [
        pytest.param(a_notebook("ada"), "ada@lab.example", id="a name of the domain"),
        pytest.param(a_pod(GPU, labels={NAME: "ada"}), "ada@lab.example", id="the same, by the label"),
        pytest.param(a_notebook("Eve"), "evelyn@elsewhere.example", id="a listed name"),
        pytest.param(a_notebook("bob@kth.example"), "bob@kth.example", id="an address"),
        pytest.param(
            a_notebook("ada", **{"carrel.dev/hub-address": "Ada.Lovelace@lab.example"}),
            "ada.lovelace@lab.example",
            id="the hub's own word goes first",
        ),
        pytest.param(
            a_notebook("ada", **{"carrel.dev/hub-address": "nobody"}), "ada@lab.example", id="a word that is no address"
        ),
    ],
)
async def test_a_user_of_a_listed_hub_is_the_person_who_books(pod: Json, who: str) -> None:
    cluster = ReviewedCluster(hub_people=LAB, bookings=[a_booking(who)])
    reviewed = await cluster.create(pod, SPAWNER)

    assert reviewed.annotations["carrel.dev/user"] == who
    assert reviewed.annotations["carrel.dev/tier"] == "booked" and not reviewed.warnings
    assert (await cluster.create(reviewed.object, SPAWNER)).patch == []


@pytest.mark.parametrize(
    "pod",
    [
        a_notebook("\u0430da"),
        a_notebook("\uff41da"),
        a_notebook("bob", **{"carrel.dev/hub-address": "\u0430lice@lab.example"}),
        a_notebook("bob", **{"carrel.dev/hub-address": "alice@lab\uff0eexample"}),
    ],
    ids=["a Cyrillic a", "a wide a", "an address with a Cyrillic a", "an address with a wide dot"],
)
async def test_who_only_looks_like_a_person_is_somebody_else(pod: Json) -> None:
    bookings = [a_booking(ALICE), a_booking("ada@lab.example", name="b2")]
    cluster = ReviewedCluster(hub_people=HubPeople("lab.example"), bookings=bookings)
    reviewed = await cluster.create(pod, SPAWNER)

    assert reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    assert "@" not in reviewed.annotations["carrel.dev/user"] or reviewed.annotations["carrel.dev/user"].isascii()


async def test_an_owner_of_a_namespace_who_only_looks_like_a_person_is_nobody() -> None:
    for owner, name in ((" Alice@lab.example ", "Alice@lab.example"), ("\u0430lice@lab.example", "")):
        cluster = ReviewedCluster(namespace={"owner": owner}, bookings=[a_booking(ALICE)])
        reviewed = await cluster.create(a_pod(GPU), JOB_CONTROLLER)
        assert reviewed.annotations.get("carrel.dev/user", "") == name
        assert reviewed.annotations["carrel.dev/tier"] == ("booked" if name else "opportunistic")


async def test_an_address_is_believed_only_from_a_listed_hub() -> None:
    forged = a_notebook("ada", **{"carrel.dev/hub-address": ALICE})
    for user in ("bob@lab.example", UNLISTED, JOB_CONTROLLER):
        reviewed = await ReviewedCluster(hub_people=LAB, bookings=[a_booking(ALICE)]).create(forged, user)

        assert reviewed.annotations.get("carrel.dev/user") != ALICE
        assert "carrel.dev/hub-address" not in reviewed.annotations
        assert reviewed.annotations["carrel.dev/tier"] == "opportunistic"


async def test_a_user_who_matches_nobody_is_opportunistic_and_the_pod_is_told_which_option_helps() -> None:
    reviewed = await ReviewedCluster().create(a_notebook("ada"), SPAWNER)

    assert reviewed.annotations["carrel.dev/user"] == "ada"
    assert reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    (warning,) = reviewed.warnings
    assert warning.startswith("no address is known of the hub's user ada")
    assert "hubs.usernameDomain or hubs.users" in warning


async def test_without_a_gpu_the_notebook_stays_its_persons_and_a_second_review_changes_nothing() -> None:
    cluster = full()
    cluster.hub_people = LAB
    pod = a_notebook("ada", **{"carrel.dev/hub-address": "countess@lab.example"})
    reviewed = await cluster.create(pod, SPAWNER)

    assert reviewed.annotations["carrel.dev/user"] == "countess@lab.example"
    assert "carrel.dev/runs-without-gpu" in reviewed.annotations
    assert (await cluster.create(reviewed.object, SPAWNER)).patch == []


# --- where whoever creates a pod is believed, as in MAIA --------------------------------------------------------------

ANYBODY = AdmissionOptions(believes_all=True)


@pytest.mark.parametrize("creator", ["bob@lab.example", JOB_CONTROLLER, UNLISTED])
@pytest.mark.parametrize("pod", [a_notebook("ada"), a_pod(GPU, labels={NAME: "ada-40lab-2eexample"})])
async def test_everybody_may_say_whose_pod_it_is_where_the_admin_has_chosen_that(creator: str, pod: Json) -> None:
    cluster = ReviewedCluster(options=ANYBODY, hub_people=LAB, bookings=[a_booking("ada@lab.example")])
    reviewed = await cluster.create(pod, creator)

    assert reviewed.annotations["carrel.dev/user"] == "ada@lab.example"
    assert reviewed.annotations["carrel.dev/tier"] == "booked"
    assert (await cluster.create(reviewed.object, creator)).patch == []


async def test_a_pod_that_names_no_user_is_its_creators_there_too() -> None:
    unreadable = a_pod(GPU, labels={NAME: "a-b"})
    for pod in (a_pod(GPU), unreadable):
        reviewed = await ReviewedCluster(options=ANYBODY).create(pod, "bob@lab.example")
        assert reviewed.annotations["carrel.dev/user"] == "bob@lab.example"


# --- a hub that nobody listed ----------------------------------------------------------------------------------------


async def test_a_pod_of_an_unlisted_hub_is_opportunistic_and_nobodys_whoever_owns_the_namespace() -> None:
    cluster = ReviewedCluster(namespace={"owner": ALICE}, bookings=[a_booking(ALICE)])
    reviewed = await cluster.create(a_notebook(ALICE), UNLISTED)

    assert reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    assert reviewed.annotations["terminate-at"] == "1900-01-01T08:00:00Z"
    assert "carrel.dev/user" not in reviewed.annotations
    assert reviewed.annotations["carrel.dev/unlisted-spawner"] == UNLISTED
    (warning,) = reviewed.warnings
    assert warning.startswith(f"{UNLISTED} created this pod for a user of a hub, but is not in hubs.accounts")
    assert (await cluster.create(reviewed.object, UNLISTED)).patch == []


@pytest.mark.parametrize(
    ("user", "pod", "who"),
    [
        pytest.param("bob@lab.example", a_notebook("ada"), "bob@lab.example", id="a person who wrote the key"),
        pytest.param(JOB_CONTROLLER, a_notebook("ada"), ALICE, id="a Job whose template has the key"),
        pytest.param(UNLISTED, a_pod(GPU), ALICE, id="an account that names no user"),
    ],
)
async def test_others_than_unlisted_hubs_are_recognised_as_always(user: str, pod: Json, who: str) -> None:
    reviewed = await ReviewedCluster(namespace={"owner": ALICE}).create(pod, user)

    assert reviewed.annotations["carrel.dev/user"] == who
    assert "carrel.dev/unlisted-spawner" not in reviewed.annotations


async def test_a_strict_cluster_names_the_option_when_it_refuses_a_pod_of_an_unlisted_hub() -> None:
    reviewed = await ReviewedCluster(options=AdmissionOptions(strict=True)).create(a_notebook("ada"), UNLISTED)

    assert not reviewed.allowed
    assert f"{UNLISTED} created this pod for a user of a hub, but is not in hubs.accounts" in reviewed.message


async def test_unlisted_hubs_and_unmatched_users_are_counted_and_logged_once_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    handler = await ReviewedCluster().handler()

    async def created(user: str, by: str, *, dry_run: bool = False) -> None:
        await handler.mutate(json.dumps(review(a_notebook(user), by, dry_run=dry_run)).encode())

    for user in ("ada", "bob"):
        await created(user, UNLISTED)
        await created(user, SPAWNER)
        await created(user, SPAWNER)
    await created("eve", UNLISTED, dry_run=True)

    text = handler.metrics.text()
    assert b"carrel_pods_of_unlisted_spawners_total 2.0" in text
    assert b"carrel_pods_of_unmatched_hub_users_total 4.0" in text
    unlisted = [line for line in caplog.messages if line.startswith("unlisted_spawner")]
    assert len(unlisted) == 1 and f"add {UNLISTED} to hubs.accounts" in unlisted[0]
    unmatched = [line for line in caplog.messages if line.startswith("hub_user_without_address")]
    assert [line.split()[1] for line in unmatched] == ["user='ada'", "user='bob'"]


async def test_made_up_names_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    handler = await ReviewedCluster().handler()
    for number in range(MOST_NAMES + 50):
        forged = review(a_notebook("ada"), f"system:serviceaccount:mine:hub-{number}")
        await handler.mutate(json.dumps(forged).encode())

    assert len([line for line in caplog.messages if line.startswith("unlisted_spawner")]) == MOST_NAMES
    assert f"carrel_pods_of_unlisted_spawners_total {MOST_NAMES + 50}.0".encode() in handler.metrics.text()


async def test_a_user_cannot_say_that_anothers_pod_runs_without_a_gpu() -> None:
    """Else it would show on that person's page."""
    made_up = {
        "carrel.dev/runs-without-gpu": "this pod runs without a GPU: ask mallory",
        "carrel.dev/asked-for": '{"gpus": 1}',
        "carrel.dev/user": ALICE,
    }
    reviewed = await ReviewedCluster().create(a_pod(annotations=made_up), "mallory@lab.example")

    assert "carrel.dev/user" not in reviewed.annotations
