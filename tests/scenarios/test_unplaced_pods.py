"""GPUs do not lie idle for booked pods that cannot use them: they are lent, and taken back when that has changed."""

from datetime import timedelta
from typing import Any

import pytest

from carrel.kubernetes.cluster import DeleteOptions, MergePatch
from carrel.kubernetes.objects.resources import NAMESPACES, PODS
from carrel.lifecycle.revoking.revocation import CONTESTED_WAIT
from carrel.lifecycle.revoking.unplaced_pods import PATIENCE
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab
from tests.kit.tiers import (
    BOOKED,
    OPPORTUNISTIC,
    WHOLE,
    TierController,
    a_booked_pod,
    an_opportunistic_pod,
    catch_up,
    end_deleted,
    mark_unschedulable,
    pods_of,
    settle,
)
from tests.scenarios.test_closed_nodes import CORDONED, OPEN, change
from tests.scenarios.test_settling import events_of, kept_for

OF_A_PAIR = {**BOOKED, "pod-group-name": "pair", "carrel.dev/gang-size": "2"}
LACKING = ("urgent",)
LENT = "carrel.dev/gpus-lent"


async def is_placed(lab: Lab, name: str) -> bool:
    return bool((await pods_of(lab))[name].spec.node_name)


async def an_unplaced_pod(lab: Lab, controller: TierController) -> None:
    """A GPU was revoked for a booked pod, for which no node has enough CPU; then its GPU was lent, to `other`."""
    await an_opportunistic_pod(lab, controller.replica, "train")
    await lab.pod("urgent", limits=WHOLE, annotations=BOOKED)
    await settle(lab, controller, lacking=LACKING)
    assert await kept_for(lab) == ["lab/urgent"]
    await lab.pod("other", limits=WHOLE, annotations=OPPORTUNISTIC)
    await settle(lab, controller, lacking=LACKING)
    assert not await is_placed(lab, "other")
    lab.clock.now += PATIENCE
    await settle(lab, controller, lacking=LACKING)
    assert await is_placed(lab, "other")


# --- a booked pod that is not placed ---------------------------------------------------------------------------------


async def test_what_is_kept_for_a_pod_that_is_not_placed_is_given_up_and_the_pod_is_told() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_unplaced_pod(lab, TierController(replica))

        assert await kept_for(lab) == []
        assert (await lab.annotations("urgent"))["carrel.dev/tier"] == "booked"
        assert (await events_of(lab, "urgent"))["GPUGivenUp"] == (
            "GPUs were free for this pod for 6 minutes, and the scheduler did not place it. It says: 0/1 nodes:"
            " 1 Insufficient cpu. Other pods may use these GPUs now. When the scheduler says something else, GPUs are"
            " taken back for this pod, not before Mon 16 Nov 12:11 UTC; to try at once, create the pod again"
        )


async def test_a_free_gpu_is_not_left_to_a_pod_that_is_not_placed_for_ever() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        controller = TierController(replica)
        for name, notes in (("urgent", BOOKED), ("other", OPPORTUNISTIC)):
            await lab.pod(name, limits=WHOLE, annotations=notes)
        await settle(lab, controller, lacking=LACKING)
        lab.clock.now += PATIENCE - timedelta(seconds=1)
        await settle(lab, controller, lacking=LACKING)
        assert not await is_placed(lab, "other")

        lab.clock.now += timedelta(seconds=1)
        await settle(lab, controller, lacking=LACKING)

        assert await is_placed(lab, "other")


async def test_gpus_are_not_taken_again_as_long_as_the_scheduler_says_the_same() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_unplaced_pod(lab, TierController(replica))
        for _ in range(10):
            lab.clock.now += timedelta(hours=3)
            async with lab.replica() as another:  # which knows only what is written in the cluster
                await settle(lab, TierController(another), lacking=LACKING)
            assert await is_placed(lab, "other")
            assert "carrel.dev/handed-over" not in await lab.annotations("other")


async def test_when_the_pod_could_be_placed_a_gpu_is_taken_back_for_it() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        controller = TierController(replica)
        await an_unplaced_pod(lab, controller)
        await mark_unschedulable(lab, "urgent", why="0/1 nodes: 1 GPU 0 of n1 is in use")
        await settle(lab, controller)
        assert not await is_placed(lab, "urgent"), "not before the time that it was told"

        lab.clock.now += timedelta(minutes=5)
        await settle(lab, controller)

        assert await is_placed(lab, "urgent")
        assert "carrel.dev/handed-over" in await lab.annotations("other")


@pytest.mark.parametrize("forged", ["", "{", "{}", '{"until": "2999-01-01T00:00:00Z"}', '{"until": 3, "times": "x"}'])
async def test_an_odd_mark_on_a_pod_does_no_harm(forged: str) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train")
        await lab.pod("urgent", limits=WHOLE, annotations={**BOOKED, LENT: forged})
        controller = TierController(replica)

        await settle(lab, controller, lacking=LACKING)
        lab.clock.now += PATIENCE
        await settle(lab, controller, lacking=LACKING)

        assert await kept_for(lab) == []


# --- a gang that is not complete -------------------------------------------------------------------------------------


async def test_what_an_incomplete_booked_gang_could_use_is_lent_at_once() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train")
        await lab.pod("one", limits=WHOLE, annotations=OF_A_PAIR)
        await lab.pod("other", limits=WHOLE, annotations=OPPORTUNISTIC)
        controller = TierController(replica)

        await settle(lab, controller)

        assert await is_placed(lab, "other"), "the free GPU"
        assert await is_placed(lab, "train"), "nobody loses a GPU"
        assert await kept_for(lab) == []


async def a_complete_gang(lab: Lab, controller: TierController) -> None:
    """As the last member comes, GPUs are revoked for the gang, in two rounds."""
    for name in ("one", "two"):
        await lab.pod(name, limits=WHOLE, annotations=OF_A_PAIR)
        await mark_unschedulable(lab, name)
    for _ in range(6):
        await catch_up(lab, controller.replica)
        await controller.round()


async def test_gpus_are_revoked_when_the_gang_is_complete() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        for name in ("a", "b"):
            await an_opportunistic_pod(lab, replica, name)
        controller = TierController(replica)
        await lab.pod("one", limits=WHOLE, annotations=OF_A_PAIR)
        await settle(lab, controller)
        assert await kept_for(lab) == []

        await lab.pod("two", limits=WHOLE, annotations=OF_A_PAIR)
        await mark_unschedulable(lab, "two")
        await catch_up(lab, replica)
        await controller.round()
        await controller.round()

        assert sorted(await kept_for(lab)) == ["lab/one", "lab/two"]


async def test_what_is_kept_for_a_gang_that_is_not_complete_any_more_is_given_up() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        for name in ("a", "b"):
            await an_opportunistic_pod(lab, replica, name)
        controller = TierController(replica)
        await a_complete_gang(lab, controller)
        assert sorted(await kept_for(lab)) == ["lab/one", "lab/two"]
        await lab.client.delete(PODS, "two", "lab", how=DeleteOptions(grace_seconds=0))
        await settle(lab, controller)
        assert "lab/one" in await kept_for(lab)

        lab.clock.now += timedelta(minutes=15)  # what is kept for the next pod of the booking is kept so long
        await settle(lab, controller)
        lab.clock.now += PATIENCE
        await settle(lab, controller)

        assert await kept_for(lab) == []
        assert (await events_of(lab, "one"))["GPUGivenUp"] == (
            "GPUs were kept for this pod, but its gang is not complete: other pods may use them now. When all members"
            " are there, GPUs are taken back for them"
        )


async def test_the_time_of_a_member_does_not_run_while_the_gpu_of_another_is_yet_to_come() -> None:
    """One victim has gone, the other has an hour."""
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        slow: dict[str, Any] = {"metadata": {"annotations": {"carrel.dev/revocation-grace": "1h"}}}
        await lab.client.patch(NAMESPACES, "lab", MergePatch(slow))
        for name in ("a", "b"):
            await an_opportunistic_pod(lab, replica, name)
        controller = TierController(replica)
        await a_complete_gang(lab, controller)
        await lab.client.delete(PODS, "a", "lab", how=DeleteOptions(grace_seconds=0))
        for _ in range(3):
            await catch_up(lab, replica)
            await controller.round()
            lab.clock.now += PATIENCE

        assert sorted(await kept_for(lab)) == ["lab/one", "lab/two"]
        assert LENT not in {**await lab.annotations("one"), **await lab.annotations("two")}


async def test_no_pod_is_ended_for_a_gang_that_is_not_complete_any_more() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        for name in ("a", "b"):
            await an_opportunistic_pod(lab, replica, name)
        controller = TierController(replica, grace_s=60)
        await a_complete_gang(lab, controller)
        for name in ("one", "two"):  # its hub or its Job creates it again, or not
            await lab.client.delete(PODS, name, "lab", how=DeleteOptions(grace_seconds=0))
        await lab.pod("one", limits=WHOLE, annotations=OF_A_PAIR)
        await settle(lab, controller)

        for _ in range(5):
            lab.clock.now += timedelta(minutes=5)
            await settle(lab, controller)

        assert await is_placed(lab, "a") and await is_placed(lab, "b")
        assert "carrel.dev/leave-by" not in {**await lab.annotations("a"), **await lab.annotations("b")}


# --- a gang that lacks GPUs which no revocation gives it -------------------------------------------------------------


async def rounds(lab: Lab, controller: TierController) -> None:
    """Only the controller's: kube-scheduler does not bind a gang here."""
    for _ in range(6):
        await catch_up(lab, controller.replica)
        await controller.round()
        await end_deleted(lab)
        lab.clock.now += CONTESTED_WAIT  # each member would fit, but for the other


async def test_nobody_loses_a_gpu_to_a_gang_of_which_a_member_misses_a_cordoned_node() -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train")
        await change(lab, replica, "n2", CORDONED)
        controller = TierController(replica)
        await a_complete_gang(lab, controller)
        assert await kept_for(lab) == []
        assert await is_placed(lab, "train")

        await change(lab, replica, "n2", OPEN)
        await rounds(lab, controller)

        assert await kept_for(lab) != [], "one has room on n2, and the other one on n1"
        assert "carrel.dev/handed-over" in await lab.annotations("train")


async def test_a_gang_that_had_to_wait_for_a_booked_pod_gets_lent_gpus_back_when_they_are_enough() -> None:
    """kube-scheduler's words are those of the extender, and the same before and after."""
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        await a_booked_pod(lab, replica, "busy")
        controller = TierController(replica)
        await lab.pod("other", limits=WHOLE, annotations=OPPORTUNISTIC)
        await a_complete_gang(lab, controller)
        lab.clock.now += PATIENCE
        await settle(lab, controller, lacking=("one", "two"))
        assert await is_placed(lab, "other")
        assert (await events_of(lab, "one"))["GPUGivenUp"] == (
            "GPUs were free for this pod for 6 minutes, and it could not use them: gang lab/pair has room for 1 of its"
            " 2 members; all or none are placed. Other pods may use these GPUs now. They are left to this pod again,"
            " and taken back if that is enough, from Mon 16 Nov 12:11 UTC on"
        )
        for name in ("one", "two"):
            await mark_unschedulable(lab, name)  # as before
        lab.clock.now += timedelta(hours=1)
        await rounds(lab, controller)
        assert await is_placed(lab, "other"), "one GPU is not enough for the gang"

        await lab.client.delete(PODS, "busy", "lab", how=DeleteOptions(grace_seconds=0))
        await rounds(lab, controller)

        assert "carrel.dev/handed-over" in await lab.annotations("other")
