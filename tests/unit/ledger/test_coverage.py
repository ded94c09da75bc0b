"""Which pods a booking covers: every sentence of the rule, on the pure function."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from carrel.ids import BookingId, GpuUuid, PodUid
from carrel.ledger.coverage import (
    BookingUse,
    Covered,
    Entitlement,
    PersonsPod,
    RevocableRoom,
    SharedGpus,
    cover_holders,
    cover_waiting,
    uses_of,
)
from carrel.ledger.gpus import MiB, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, place
from carrel.ledger.requests import GpuSelector, Portion, Request, Topology, TopologyMode
from carrel.ledger.shares import Coverage, Holder, Share, ShareState
from carrel.ledger.slots import as_slots
from tests.kit.gpus import A100, A6000, N1, a_gpu, a_node, memory, whole

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
HALF = Request(1, Portion(Fraction(1, 2)))
ADA, BOB = "ada@lab.example", "bob@lab.example"


def booking(name: str = "b", gpus: int = 1, **more: object) -> Entitlement:
    """Ada's, of any model, from before noon until a day later."""
    fields: dict[str, object] = {
        "people": frozenset({ADA}),
        "model": "",
        "start": NOON - HOUR,
        "ends": NOON + 24 * HOUR,
        **more,
    }
    return Entitlement(booking=name, gpus=gpus, **fields)  # type: ignore[arg-type] # the builder passes fields through


class World:
    """A ledger, some bookings, and pods that are described by what they hold and ask for. Pods are Ada's."""

    def __init__(self, *bookings: Entitlement, nodes: tuple[Node, ...] = (a_node("n1", 4),)) -> None:
        self.ledger = Ledger(nodes)
        self.bookings = bookings
        self.pods: dict[str, PersonsPod] = {}
        self.nodes = tuple(node.name for node in nodes)
        self.stays: set[str] = set()
        self.shared = SharedGpus()
        self.uses: dict[BookingId, BookingUse] = {}

    def holds(
        self,
        name: str,
        *gpus: int,
        part: int | None = None,
        recorded: tuple[str, int] | None = None,
        bound: int | None = 0,
        **more: object,
    ) -> "World":
        """GPUs of n1; `recorded=("b", 3)`: covered by b since three minutes after noon; bound so many after noon."""
        uid, coverage = f"uid-{name}", None
        if recorded is not None:
            coverage = Coverage(BookingId(recorded[0]), NOON + timedelta(minutes=recorded[1]))
        self.ledger.restore(
            Share(
                Holder(PodUid(uid), "lab", name),
                GpuUuid(f"GPU-n1-{gpu}"),
                None if part is None else MiB(part),
                coverage=coverage,
            )
            for gpu in gpus
        )
        instant = None if bound is None else NOON + timedelta(minutes=bound)
        self.pods[name] = self._pod(name, bound_at=instant, **more)
        return self

    def waits(self, name: str, request: Request | None = None, minute: int = 0, **more: object) -> "World":
        created = NOON + timedelta(minutes=minute)
        fields = {"request": request or whole(), "nodes": self.nodes, "created": created, **more}
        self.pods[name] = self._pod(name, **fields)
        return self

    def somebody_holds(self, gpu: int, part: int | None = None, *, stays: bool) -> "World":
        """A pod that no booking covers: it stays (exempt, or covered by another booking), or is opportunistic."""
        name = f"other-{gpu}"
        self.ledger.restore(
            [Share(Holder(PodUid(name)), GpuUuid(f"GPU-n1-{gpu}"), None if part is None else MiB(part))]
        )
        self.stays |= {name} if stays else set()
        return self

    def _pod(self, name: str, **more: object) -> PersonsPod:
        fields: dict[str, object] = {"person": ADA, "namespace": "lab", "created": NOON, "bound_at": None, **more}
        fields.setdefault("request", None)
        return PersonsPod(Holder(PodUid(f"uid-{name}"), "lab", name), **fields)  # type: ignore[arg-type] # passed through

    def covered(self) -> dict[str, Covered]:
        """By the pod's name."""
        uses = self.uses = uses_of(self.bookings)
        holding = cover_holders(self.ledger, uses, self.pods.values())
        stay = self.stays | holding.keys()
        for uid, by in holding.items():
            parts = [gpu for gpu, share in self.ledger.shares_of(uid).items() if share.memory is not None]
            self.shared.add(uid, by.entitlement, parts)
        room = RevocableRoom(self.ledger, lambda uid: uid not in stay)
        waiting = [pod for pod in self.pods.values() if not self.ledger.shares_of(pod.holder.uid)]
        found = holding | cover_waiting(room, uses, waiting, self.shared)
        return {uid.removeprefix("uid-"): by for uid, by in sorted(found.items())}

    def by(self) -> dict[str, str]:
        """Pod → booking."""
        return {name: each.entitlement.booking for name, each in self.covered().items()}


# --- so many different GPUs ------------------------------------------------------------------------------------------


def test_the_covered_pods_never_touch_more_gpus_than_booked() -> None:
    world = World(booking(gpus=2)).holds("a", 0).holds("b", 1, bound=1).holds("c", 2, bound=2)
    assert world.by() == {"a": "b", "b": "b"}
    assert world.uses[BookingId("b")].count == 2


def test_a_pod_with_more_gpus_than_are_booked_is_not_covered_at_all() -> None:
    assert World(booking(gpus=2)).holds("a", 0, 1, 2).by() == {}


def test_two_halves_on_one_gpu_use_up_one_booked_gpu() -> None:
    world = World(booking()).holds("a", 0, part=8138).holds("b", 0, part=8138, bound=1).holds("c", 1, part=8138)
    assert world.by() == {"a": "b", "b": "b"}
    assert world.uses[BookingId("b")].gpus == {"GPU-n1-0": 16276}


def test_a_slot_counts_as_a_gpu_where_the_kubelet_chooses() -> None:
    node = as_slots(replace(a_node("n1", 2), kubelet_chooses=True), {})
    world = World(booking(), nodes=(node,))
    slots = [gpu.uuid for gpu in node.gpus]
    for name, slot in zip("ab", slots, strict=True):
        world.ledger.restore([Share(Holder(PodUid(f"uid-{name}"), "lab", name), slot, None)])
        world.pods[name] = world._pod(name, bound_at=NOON)
    assert world.by() == {"a": "b"}


def test_a_waiting_half_goes_on_the_slot_that_its_booking_covers() -> None:
    node = as_slots(replace(a_node("n1", 2), kubelet_chooses=True), {})
    world = World(booking(), nodes=(node,)).waits("w", HALF)
    slot = node.gpus[1].uuid
    world.ledger.restore([Share(Holder(PodUid("uid-a"), "lab", "a"), slot, MiB(8138))])
    world.pods["a"] = world._pod("a", bound_at=NOON)
    covered = world.covered()["w"]
    assert covered.only == {slot}
    placed = place(world.ledger, covered.narrowed(HALF), N1)
    assert isinstance(placed, Placement) and [gpu.uuid for gpu in placed.gpus] == [slot]


# --- the order -------------------------------------------------------------------------------------------------------


def test_recorded_pods_come_first_then_bound_ones_then_waiting_ones() -> None:
    world = World(booking()).holds("recorded", 0, recorded=("b", 9), bound=9).holds("bound", 1).waits("w", minute=-60)
    assert world.by() == {"recorded": "b"}
    del world.pods["recorded"]
    assert world.by() == {"bound": "b"}
    del world.pods["bound"]
    assert world.by() == {"w": "b"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"recorded": ("b", 1), "bound": 5}, {"recorded": ("b", 2), "bound": 0}, id="recorded since"),
        pytest.param({"bound": 1}, {"bound": 2}, id="bound at"),
        pytest.param({"bound": 1}, {"bound": None}, id="one that is only being bound comes after"),
    ],
)
def test_earlier_pods_come_first(first: dict[str, object], second: dict[str, object]) -> None:
    # The names are in the other order, so that they do not decide.
    assert World(booking()).holds("z", 0, **first).holds("a", 1, **second).by() == {"z": "b"}  # type: ignore[arg-type]


def test_waiting_pods_are_covered_by_creation() -> None:
    assert World(booking()).waits("a", minute=2).waits("z", minute=1).by() == {"z": "b"}


def test_a_pod_that_does_not_fit_is_passed_over_and_not_waited_for() -> None:
    assert World(booking(gpus=2)).holds("large", 0, 1, 2).holds("small", 3, bound=1).by() == {"small": "b"}
    assert World(booking(gpus=2)).waits("large", whole(3)).waits("small", minute=1).by() == {"small": "b"}


def test_two_replicas_that_recorded_a_pod_each_for_the_last_gpu_cover_the_same_one_of_them() -> None:
    world = World(booking()).holds("a", 0, recorded=("b", 3)).holds("z", 1, recorded=("b", 2))
    assert world.by() == {"z": "b"}
    same_instant = World(booking()).holds("z", 0, recorded=("b", 3)).holds("a", 1, recorded=("b", 3))
    assert same_instant.by() == {"a": "b"}


def test_a_correction_that_reached_one_of_two_leases_keeps_the_place_in_the_order() -> None:
    """The earlier record names a booking that has ended."""
    world = World(booking(gpus=2)).holds("half-told", 0, recorded=("ended", 0), bound=9)
    world.holds("half-told", 1, recorded=("b", 5), bound=9).holds("later", 2, recorded=("b", 6), bound=0)
    assert world.by() == {"half-told": "b"}


# --- several bookings ------------------------------------------------------------------------------------------------


def test_of_several_bookings_the_one_that_ends_last_is_taken_first() -> None:
    short, long = booking("short", ends=NOON + HOUR), booking("long")
    assert World(short, long).holds("a", 0).holds("z", 1, bound=1).by() == {"a": "long", "z": "short"}
    assert World(short, long).waits("a").waits("z", minute=1).by() == {"a": "long", "z": "short"}


def test_who_is_recorded_stays_with_its_booking() -> None:
    short, long = booking("short", ends=NOON + HOUR), booking("long")
    assert World(short, long).holds("a", 0, recorded=("short", 0)).by() == {"a": "short"}


def test_if_its_booking_has_become_too_small_another_covers_a_recorded_pod() -> None:
    short, long = booking("short", ends=NOON + HOUR), booking("long")
    world = World(short, long).holds("a", 0, recorded=("short", 0)).holds("z", 1, recorded=("short", 1))
    assert world.by() == {"a": "short", "z": "long"}


def test_own_and_group_bookings_count_together() -> None:
    own = booking("own", ends=NOON + HOUR)
    course = booking("course", people=frozenset({ADA, BOB}), group="course")
    world = World(own, course).holds("bob", 0, person=BOB).holds("ada", 1, bound=1).holds("more", 2, bound=2)
    assert world.by() == {"ada": "own", "bob": "course"}


@pytest.mark.parametrize("wanted", ["wanted", "unknown", "next", ""])
def test_a_pod_made_for_one_booking_is_not_covered_by_another_while_that_one_runs(wanted: str) -> None:
    mine, last = booking("wanted", ends=NOON + HOUR), booking("last")
    expected = "wanted" if wanted == "wanted" else "last"
    assert World(mine, last).holds("a", 0, wanted_booking=wanted).by() == {"a": expected}
    assert World(mine, last).waits("a", wanted_booking=wanted).by() == {"a": expected}
    full = World(mine, last).holds("first", 0, recorded=("wanted", 0)).waits("a", wanted_booking=wanted)
    assert ("a" in full.by()) == (wanted != "wanted")


def test_a_pod_cannot_be_made_for_somebody_elses_booking() -> None:
    bobs = booking("bobs", people=frozenset({BOB}))
    assert World(bobs, booking("own")).waits("a", wanted_booking="bobs").by() == {"a": "own"}
    elsewhere = booking("elsewhere", namespace="other")
    assert World(elsewhere, booking("own")).holds("a", 0, wanted_booking="elsewhere").by() == {"a": "own"}


def test_a_recorded_pod_does_not_lose_its_coverage_when_the_booking_it_was_made_for_starts() -> None:
    early, wanted = booking("early"), booking("wanted")
    world = World(early, wanted).holds("other", 1, recorded=("wanted", 0))
    assert world.holds("a", 0, recorded=("early", 1), wanted_booking="wanted").by()["a"] == "early"


# --- whom a booking is for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (booking(people=frozenset({BOB})), "somebody else's"),
        (booking(model=A100), "of another model"),
        (booking(namespace="other"), "for another namespace"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_booking_covers_only_what_it_is_for(other: Entitlement, why: str) -> None:
    assert World(other).holds("h", 0).by() == {}, why
    assert World(other).holds("h", 0, recorded=("b", 0)).by() == {}, f"{why}, whatever is recorded"
    assert World(other).waits("w").by() == {}, why


def test_a_booking_without_a_model_covers_every_model_and_leaves_the_pod_its_own_wish() -> None:
    nodes = (Node(N1, (a_gpu("n1", 0, model=A100), a_gpu("n1", 1))),)
    assert World(booking(), nodes=nodes).holds("a", 0).by() == {"a": "b"}
    asked = whole(model=A6000)
    waiting = World(booking(), nodes=nodes).waits("w", asked).covered()["w"]
    assert waiting.narrowed(asked) == asked


def test_a_covered_pod_without_a_wish_goes_to_the_booked_model() -> None:
    nodes = (Node(N1, (a_gpu("n1", 0), a_gpu("n1", 1, model=A100))),)
    covered = World(booking(model=A100), nodes=nodes).waits("w").covered()["w"]
    assert covered.narrowed(whole()) == whole(model=A100)


def test_a_pod_that_asks_for_another_model_is_not_covered_and_does_not_use_the_booking_up() -> None:
    world = World(booking(model=A6000)).waits("other", whole(model=A100)).waits("w", minute=1)
    assert world.by() == {"w": "b"}


def test_a_pod_on_gpus_of_two_models_is_not_covered_by_a_booking_of_one() -> None:
    nodes = (Node(N1, (a_gpu("n1", 0), a_gpu("n1", 1, model=A100))),)
    assert World(booking(gpus=2, model=A100), nodes=nodes).holds("a", 0, 1).by() == {}


# --- a share of a GPU ------------------------------------------------------------------------------------------------


def test_a_booked_share_covers_no_more_than_that_part_of_one_gpu() -> None:
    world = World(booking(share_of=4)).holds("a", 0, part=3000).holds("b", 0, part=1069, bound=1)
    assert world.by() == {"a": "b", "b": "b"}
    assert world.holds("c", 0, part=1, bound=2).by() == {"a": "b", "b": "b"}
    assert World(booking(share_of=4)).holds("whole", 0).by() == {}


@pytest.mark.parametrize(
    ("asked", "is_covered"),
    [
        pytest.param(memory(4069), True, id="the booked part"),
        pytest.param(memory(4070), False, id="more than the booked part"),
        pytest.param(HALF, False, id="half a GPU of a booked quarter"),
        pytest.param(whole(), False, id="a whole GPU"),
    ],
)
def test_a_waiting_pod_is_covered_by_a_booked_share_only_if_it_would_be_when_placed(
    asked: Request, is_covered: bool
) -> None:
    assert ("w" in World(booking(share_of=4)).waits("w", asked).by()) == is_covered


def test_a_second_waiting_part_must_fit_in_the_booked_share_as_well() -> None:
    world = World(booking(share_of=2)).holds("a", 0, part=5000)
    assert world.waits("w", memory(3138)).covered()["w"].only == {"GPU-n1-0"}
    assert World(booking(share_of=2)).holds("a", 0, part=5000).waits("w", memory(3139)).by() == {"a": "b"}


def test_a_waiting_part_that_counts_as_a_new_gpu_does_not_go_where_the_booked_share_is_used_up() -> None:
    """There it would be more of the GPU than was booked, and not covered any more."""
    world = World(booking(gpus=2, share_of=2)).holds("a", 0, part=5000).waits("w", memory(5000))
    assert world.covered()["w"].not_on == {"GPU-n1-0"}


# --- pods that wait --------------------------------------------------------------------------------------------------


def test_a_waiting_pod_counts_if_it_could_be_placed_were_all_opportunistic_pods_gone() -> None:
    world = World(booking(), nodes=(a_node("n1", 1),)).waits("w")
    assert world.somebody_holds(0, stays=False).by() == {"w": "b"}
    world.stays.add("other-0")
    assert world.by() == {}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"request": whole(selector=GpuSelector(models=("H100",)))}, id="no such model"),
        pytest.param({"request": whole(5)}, id="more GPUs than a node has"),
        pytest.param({"request": whole(node_labels=frozenset({("zone", "x")}))}, id="no node with that label"),
        pytest.param({"request": memory(99_999)}, id="more memory than a GPU has"),
        pytest.param({"nodes": ()}, id="no node by its node selector"),
        pytest.param({"nodes": ("elsewhere",)}, id="a node without GPUs"),
        pytest.param({"request": None}, id="a request that cannot be read"),
    ],
)
def test_a_wrong_selector_does_not_use_up_the_booking(wrong: dict[str, object]) -> None:
    world = World(booking(gpus=5)).waits("right", minute=1)
    world.pods["wrong"] = replace(world.pods["right"], holder=Holder("uid-wrong"), created=NOON, **wrong)  # type: ignore[arg-type]
    assert world.by() == {"right": "b"}


def test_gpus_of_an_unusable_node_or_an_unusable_gpu_are_no_room() -> None:
    silent = replace(a_node("n1", 1), unusable="the agent is silent")
    assert World(booking(), nodes=(silent,)).waits("w").by() == {}
    assert World(booking(), nodes=(a_node("n1", 1, unusable="XID 79"),)).waits("w").by() == {}


def test_what_is_asked_to_be_in_one_island_must_find_one() -> None:
    together = whole(2, topology=Topology(TopologyMode.REQUIRED))
    assert World(booking(gpus=2), nodes=(a_node("n1", islands="ab.."),)).waits("w", together).by() == {}
    assert World(booking(gpus=2), nodes=(a_node("n1", islands="ab.a"),)).waits("w", together).by() == {"w": "b"}


def test_a_waiting_part_goes_only_on_a_covered_gpu_that_has_room_and_counts_as_no_further_gpu() -> None:
    world = World(booking()).holds("a", 2, part=8000).waits("w", memory(8000))
    assert world.covered()["w"].only == {"GPU-n1-2"}
    assert world.uses[BookingId("b")].count == 1


def test_a_waiting_part_goes_on_a_covered_gpu_that_can_be_given_room_by_revocation() -> None:
    world = World(booking()).holds("a", 2, part=8000).somebody_holds(2, 8000, stays=False).waits("w", memory(8000))
    assert world.covered()["w"].only == {"GPU-n1-2"}
    world.stays.add("other-2")
    assert "w" not in world.by()


def test_waiting_parts_share_the_room_that_is_left_on_a_covered_gpu() -> None:
    world = World(booking()).holds("a", 0, part=8000)
    world.waits("x", memory(4000)).waits("y", memory(4000), minute=1).waits("z", memory(4000), minute=2)
    assert world.by() == {"a": "b", "x": "b", "y": "b"}


def test_a_waiting_part_that_finds_no_room_on_the_covered_gpus_takes_a_further_one_if_it_is_booked() -> None:
    world = World(booking(gpus=2)).holds("a", 0, part=16000).waits("w", memory(8000))
    covered = world.covered()["w"]
    assert covered.only == frozenset()
    assert world.uses[BookingId("b")].count == 2


def test_parts_of_several_gpus_in_one_island_go_on_covered_gpus_of_one_island() -> None:
    asked = memory(100, 2, topology=Topology(TopologyMode.REQUIRED))
    apart = World(booking(gpus=2), nodes=(a_node("n1", islands="aabb"),)).holds("a", 0, 2, part=8000).waits("w", asked)
    assert "w" not in apart.by()  # else it would wait forever for GPUs that are not linked
    linked = World(booking(gpus=3), nodes=(a_node("n1", islands="aabb"),)).holds("a", 0, 2, 3, part=8000)
    assert linked.waits("w", asked).covered()["w"].only == {"GPU-n1-2", "GPU-n1-3"}
    alone = World(booking(gpus=2), nodes=(a_node("n1", 4),)).holds("a", 0, 2, part=8000).waits("w", asked)
    assert "w" not in alone.by()


def test_parts_of_a_covered_and_of_a_further_gpu_are_covered_when_the_pod_holds_them_and_not_while_it_waits() -> None:
    world = World(booking(gpus=2)).holds("a", 0, part=8000).waits("pair", memory(8000, 2))
    assert world.by() == {"a": "b"}
    assert world.holds("pair", 0, 1, part=8000, bound=1).by() == {"a": "b", "pair": "b"}


def test_a_covered_gpu_where_the_pod_may_not_run_does_not_help_it() -> None:
    world = World(booking(), nodes=(a_node("n1"), a_node("n2"))).holds("a", 0, part=8000)
    assert "w" not in world.waits("w", memory(8000), nodes=("n2",)).by()


# --- GPUs that two bookings touch ------------------------------------------------------------------------------------


def test_a_covered_part_of_a_booked_gpu_stays_off_gpus_that_another_booking_covers_partly() -> None:
    own, bobs = booking("own"), booking("bobs", people=frozenset({BOB}))
    world = World(own, bobs, nodes=(a_node("n1", 2),)).holds("bob", 0, part=4000, person=BOB).waits("w", memory(4000))
    covered = world.covered()["w"]
    assert covered.not_on == {"GPU-n1-0"}
    placed = place(world.ledger, covered.narrowed(memory(4000)), N1)
    assert isinstance(placed, Placement) and [gpu.index for gpu in placed.gpus] == [1]


def test_if_only_such_a_gpu_is_left_the_part_is_not_covered() -> None:
    own, bobs = booking("own"), booking("bobs", people=frozenset({BOB}))
    world = World(own, bobs, nodes=(a_node("n1", 1),)).holds("bob", 0, part=4000, person=BOB)
    assert world.waits("w", memory(4000)).by() == {"bob": "bobs"}


def test_who_booked_shares_of_a_gpu_share_it() -> None:
    own, bobs = booking("own", share_of=2), booking("bobs", share_of=2, people=frozenset({BOB}))
    world = World(own, bobs, nodes=(a_node("n1", 1),)).holds("bob", 0, part=4000, person=BOB)
    assert world.waits("w", memory(4000)).by() == {"bob": "bobs", "w": "own"}


def test_a_covered_gpu_that_another_booking_covers_too_takes_no_further_part() -> None:
    own, bobs = booking("own"), booking("bobs", people=frozenset({BOB}))
    world = World(own, bobs).holds("a", 0, part=4000).holds("bob", 0, part=4000, person=BOB)
    assert "w" not in world.waits("w", memory(4000)).by()


def test_gpus_are_open_again_when_the_covered_pod_is_gone() -> None:
    shared, own = SharedGpus(), booking("own")
    shared.add(PodUid("uid-bob"), booking("bobs"), [GpuUuid("GPU-n1-0")])
    assert shared.closed_to_further(own) == {"GPU-n1-0"} and shared.is_closed(GpuUuid("GPU-n1-0"), own)
    shared.remove(PodUid("uid-bob"))
    assert shared.closed_to_further(own) == frozenset() and not shared.is_closed(GpuUuid("GPU-n1-0"), own)


# --- GPUs and pods that come and go ----------------------------------------------------------------------------------


@pytest.mark.parametrize("share_of", [1, 2])
def test_a_recorded_pod_stays_covered_while_its_node_reboots(share_of: int) -> None:
    world = World(booking(model=A6000, share_of=share_of)).holds("a", 0, part=8000, recorded=("b", 0))
    world.ledger.remove_node(N1)
    assert world.by() == {"a": "b"}
    assert world.uses[BookingId("b")].count == 1


def test_a_pod_that_is_not_recorded_is_not_covered_as_long_as_the_model_of_its_gpu_is_unknown() -> None:
    world = World(booking(model=A6000)).holds("a", 0)
    world.ledger.remove_node(N1)
    assert world.by() == {}
    world.bookings = (booking(),)
    assert world.by() == {"a": "b"}, "of any model"


def test_an_ending_pod_counts_until_it_has_given_its_gpus_back() -> None:
    world = World(booking()).holds("going", 0, recorded=("b", 0)).waits("w")
    world.ledger.release(PodUid("uid-going"))
    assert world.ledger.shares_of(PodUid("uid-going"))[GpuUuid("GPU-n1-0")].state is ShareState.RELEASING
    assert world.by() == {"going": "b"}
    world.ledger.forget(PodUid("uid-going"))
    assert world.by() == {"w": "b"}


def test_a_booking_runs_from_its_start_until_just_before_its_end() -> None:
    each = booking(start=NOON, ends=NOON + HOUR)
    second = timedelta(seconds=1)
    instants = [NOON - second, NOON, NOON + HOUR - second, NOON + HOUR]
    assert [each.runs_at(now) for now in instants] == [False, True, True, False]
