"""The cluster map, and which bookings other rules would break."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from carrel.bookings.maintenance import Maintenance
from carrel.bookings.pages.cluster_map import Closed, NodeOnMap, PodOf, PodOnMap, draw, node_on_map, totals
from carrel.bookings.pages.configuration_page import conflicts
from carrel.bookings.pages.map_page import MapVersion, event, nodes_shown
from carrel.bookings.records import BookingRecord
from carrel.bookings.rules import Booking
from carrel.configuration.schema import BookingRules
from carrel.ids import BookingId, GpuUuid
from carrel.ledger.gpus import Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.tiers import Tier
from tests.kit.gpus import A6000, N1, a_gpu, a_node, divided_gpu, held, holder

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def nobody(uid: str) -> PodOnMap:
    return PodOnMap(None)


def booked(uid: str) -> PodOnMap:
    return PodOnMap(Tier.BOOKED, "ada@lab.example")


def seen_on_map(ledger: Ledger, pod_of: PodOf) -> NodeOnMap:
    return node_on_map(N1, ledger.node(N1), ledger.entries(N1), pod_of)


def a_record(user: str, start: datetime, days: float, id: str = "b", is_share: bool = False) -> BookingRecord:
    booking = Booking(BookingId(id), user, A6000, start, start + days * DAY, share=is_share)
    return BookingRecord(booking, created_at=start - DAY, created_by=user)


def test_a_node_and_a_gpu_under_maintenance_say_until_when_and_why() -> None:
    node = a_node("n1")
    first, second = node.gpus
    of_gpu = Maintenance("", NOON, NOON + DAY, why="XID 79", single={first.uuid: "n1/0"})
    of_node = Maintenance("", NOON, NOON + 2 * DAY, why="new fans", nodes=(N1,))

    one = Closed([of_gpu], lambda instant: f"{instant:%d %b}")
    both = Closed([of_gpu, of_node], lambda instant: f"{instant:%d %b}")

    assert [one.words(N1), one.words(N1, first), one.words(N1, second)] == [
        *("", "under maintenance until 17 Nov: XID 79", ""),
    ]
    assert both.words(N1) == "under maintenance until 18 Nov: new fans"
    assert both.words(N1, first) == "under maintenance until 18 Nov: XID 79; new fans"


# --- the map ---------------------------------------------------------------------------------------------------------


def test_a_gpu_has_a_description_of_everything_that_its_picture_shows() -> None:
    ledger = Ledger([a_node("n1")], [held("train", "n1", 0, 8138)])

    assert seen_on_map(ledger, booked).gpus[0].description == (
        "GPU 0 of n1, RTX A6000; 7.9 GiB of 15.9 GiB free; held by lab/train (booked, 7.9 GiB, promised)"
    )


def test_the_fill_shows_the_held_memory_and_the_pattern_the_tier() -> None:
    ledger = Ledger([a_node("n1")], [held("train", "n1", 0, 8138), held("all", "n1", 1, None)])
    half, full = (ElementTree.fromstring(draw(gpu)) for gpu in seen_on_map(ledger, booked).gpus)

    heights = [float(picture.find("rect[@class='share booked']").get("height", "0")) for picture in (half, full)]  # type: ignore[union-attr] # it is there
    assert heights[0] == pytest.approx(heights[1] / 2, abs=1)
    assert 'class="share no-tier"' in draw(seen_on_map(ledger, nobody).gpus[0])


def test_an_unhealthy_gpu_and_a_kept_one_look_different_and_are_not_free() -> None:
    node = a_node("n1", gpus=3)
    unhealthy = replace(node, gpus=(*node.gpus[:2], a_gpu("n1", 2, unusable="unhealthy: XID 79")))
    ledger = Ledger([unhealthy])
    ledger.keep(GpuUuid("GPU-n1-1"), holder("urgent"))
    seen = seen_on_map(ledger, nobody)

    assert [draw(gpu).split('"')[1] for gpu in seen.gpus] == ["gpu healthy", "gpu kept", "gpu unhealthy"]
    assert seen.unheld == 1
    assert "kept for lab/urgent" in seen.gpus[1].description
    assert "takes no new pods: unhealthy: XID 79" in seen.gpus[2].description


def test_gpus_of_one_island_have_one_bracket() -> None:
    seen = seen_on_map(Ledger([a_node("n1", islands="aab.")]), nobody)

    assert [(group.island, len(group.gpus)) for group in seen.groups] == [("a", 2), ("b", 1), ("", 1)]


def test_mig_slices_stand_inside_their_gpu() -> None:
    gpus = (*divided_gpu("n1", 0, ("3g.40gb", "2g.20gb")), *divided_gpu("n1", 1), a_gpu("n1", 2))
    seen = seen_on_map(Ledger([Node(N1, gpus)]), nobody)

    assert [(group.title, len(group.gpus)) for group in seen.groups] == [
        ("", 1),
        ("GPU 0, divided into MIG slices", 2),
        ("GPU 1, divided into MIG slices", 7),
    ]
    assert seen.gpus[1].description.startswith("MIG slice 0:0 of n1, A100 SXM4 80GB MIG 3g.40gb; 40 GiB of 40 GiB free")


def test_an_overcommitted_gpu_is_drawn_inside_its_outline() -> None:
    ledger = Ledger([a_node("n1")], [held("one", "n1", 0, None), held("two", "n1", 0, None)])
    gpu = seen_on_map(ledger, nobody).gpus[0]
    picture = ElementTree.fromstring(draw(gpu))

    assert gpu.free == 0
    assert all(float(rect.get("y", "0")) >= 0 for rect in picture.iter("rect"))
    assert totals(ledger, ledger.entries).held_percent == 50
    assert totals(Ledger(), Ledger().entries).held_percent == 0


def test_the_description_says_by_which_booking_a_pod_is_covered_and_until_when() -> None:
    ledger = Ledger([a_node("n1")], [held("train", "n1", 0, None)])
    words = "covered by a booking of 1 RTX A6000 until Tue 24 Nov 14:00"
    gpu = seen_on_map(ledger, lambda uid: PodOnMap(Tier.BOOKED, "ada@lab.example", words)).gpus[0]

    assert f"lab/train (booked, whole GPU, 15.9 GiB, promised, {words})" in gpu.description


def test_a_stream_continues_from_the_version_that_the_browser_has() -> None:
    ledger = Ledger([a_node("n1"), a_node("n2")])
    page = MapVersion("process", ledger.version, 7)
    ledger.hold(held("train", "n2", 0, 100))
    now = MapVersion("process", ledger.version, 7)

    def since(known: object) -> object:
        return now.since(str(known), ledger, lambda version: ())

    assert since(page) == {"n2"}
    assert since(MapVersion("other", 0, 7)) is None, "another process counted these changes"
    assert since(MapVersion("process", 0, 8)) is None, "that page shows other nodes"
    assert since(MapVersion("process", 0, 7, 1)) is None, "other bookings run now"
    assert since("nonsense") is None
    assert now.since(str(now), ledger, lambda version: (N1,)) == {"n1"}, "its GPU has become idle"


def test_nodes_of_a_large_cluster_are_filtered_by_name() -> None:
    ledger = Ledger([a_node(f"n-{number:04}", gpus=1) for number in range(300)])

    assert nodes_shown(ledger, "")[-1] == "n-0199"
    assert nodes_shown(ledger, "-029") == [f"n-{number:04}" for number in range(290, 300)]


def test_an_event_may_have_several_lines() -> None:
    assert event("node-n1", "<p>\n\n  a</p>") == "event: node-n1\ndata: <p>\ndata:   a</p>\n\n"


# --- other rules -----------------------------------------------------------------------------------------------------


def test_bookings_that_other_rules_would_break_are_found() -> None:
    records = [
        a_record("ada", NOON, 10, "long"),
        a_record("bob", NOON, 2, "short"),
        a_record("bob", NOON + 7 * DAY, 2, "soon after"),
    ]

    assert [found.record.booking.id for found in conflicts(records, BookingRules(cooldown=timedelta(0)))] == []
    assert [found.record.booking.id for found in conflicts(records, BookingRules(max_duration=7 * DAY))] == [
        "long",
        "soon after",
    ]
    assert [found.record.booking.id for found in conflicts(records, BookingRules(cooldown=3 * DAY))] == []
