"""The cluster map, the heat map, fragmentation, CSV, and which bookings other rules would break."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from carrel.bookings.capacity import ModelCapacity
from carrel.bookings.maintenance import Maintenance
from carrel.bookings.pages import heat_map
from carrel.bookings.pages.cluster_map import Closed, NodeOnMap, PodOf, PodOnMap, draw, node_on_map, totals
from carrel.bookings.pages.configuration_page import conflicts
from carrel.bookings.pages.map_page import MapVersion, event, nodes_shown
from carrel.bookings.pages.usage_page import as_csv, booked_by_model, fragmentation
from carrel.bookings.records import BookingRecord, PersonUsage
from carrel.bookings.rules import Booking
from carrel.bookings.usage.held import HourlyUsage
from carrel.configuration.schema import BookingRules
from carrel.ids import BookingId, GpuUuid
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Ledger
from carrel.ledger.tiers import Tier
from tests.kit.gpus import A6000, N1, a_gpu, a_node, held, holder

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

    assert [(name, len(gpus)) for name, gpus in seen.islands] == [("a", 2), ("b", 1), ("", 1)]


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


# --- usage -----------------------------------------------------------------------------------------------------------


def test_each_hour_shows_the_part_of_the_gpus_that_was_booked_until_now() -> None:
    records = [a_record("ada", NOON + timedelta(hours=1), 2 / 24), a_record("bob", NOON + timedelta(hours=2.5), 1)]

    (row,) = booked_by_model(records, {A6000: ModelCapacity(A6000, 2, MiB(1))}, NOON, NOON + timedelta(hours=3.5))

    assert row.parts == [0, 0.5, 0.75, 0.25]
    assert row.name == "RTX A6000"


def test_a_share_counts_as_its_part_of_a_gpu() -> None:
    records = [a_record("ada", NOON, 1, is_share=True)]

    (row,) = booked_by_model(records, {A6000: ModelCapacity(A6000, 2, MiB(1))}, NOON, NOON + timedelta(hours=1), 4)

    assert row.parts[0] == 1 / 4 / 2


def test_the_heat_map_is_well_formed_and_joins_hours_of_one_shade() -> None:
    picture = heat_map.draw([HourlyUsage("<a&b>", [0, 0.5, 0.5, 1.0])], NOON, UTC)
    ElementTree.fromstring(picture)

    assert picture.count('class="heat3"') == 1
    assert picture.count('class="heat5"') == 1
    assert "for 2 hours" in picture


@pytest.mark.parametrize(("part", "shade"), [(0, 0), (0.01, 1), (0.2, 2), (0.99, 5), (1, 5)])
def test_more_usage_has_a_darker_shade(part: float, shade: int) -> None:
    assert heat_map.step(part) == shade


def test_free_memory_that_is_too_small_is_counted_for_each_size() -> None:
    ledger = Ledger([a_node("n1", gpus=3)], [held("a", "n1", 0, 10000), held("b", "n1", 1, None)])

    found = {each.size: (each.fitting, each.lost, each.lost_memory) for each in fragmentation(ledger)}

    assert found == {"4 GiB": (2, 0, 0), "8 GiB": (1, 1, 6276), "a whole GPU": (1, 1, 6276)}
    assert fragmentation(Ledger()) == []


def test_a_name_that_looks_like_a_formula_is_not_run_by_a_spreadsheet() -> None:
    text = as_csv([PersonUsage('=HYPERLINK("x")', A6000, 2, 1.5, 1.25)], NOON, NOON + DAY)

    assert text.splitlines() == [
        "from,until,person,model,bookings,gpu_hours,covered_hours,opportunistic_hours",
        '2026-11-16T12:00:00+00:00,2026-11-17T12:00:00+00:00,"\'=HYPERLINK(""x"")",NVIDIA-RTX-A6000,2,1.50,1.25,',
    ]


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
