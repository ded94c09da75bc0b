"""The map's picture, the heat map, fragmentation, CSV, and what another set of rules would break."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import msgspec
import pytest

from carrel.bookings.capacity import Stock
from carrel.bookings.pages import heat_map
from carrel.bookings.pages.cluster_map import PodSeen, draw, see_node, totals
from carrel.bookings.pages.heat_map import Warmth
from carrel.bookings.pages.map_page import Mark, event, shown
from carrel.bookings.pages.rule_changes import conflicts
from carrel.bookings.pages.services import tier_of
from carrel.bookings.pages.usage_page import as_csv, fragments, warmth
from carrel.bookings.records import BookingRecord, Use
from carrel.bookings.rules import Booking, Rules
from carrel.kubernetes.objects import views
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Ledger
from carrel.ledger.tiers import Tier
from tests.kit.gpus import A6000, a_card, a_node, held, holder

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def nobody(uid: str) -> PodSeen:
    return PodSeen(None)


def booked(uid: str) -> PodSeen:
    return PodSeen(Tier.BOOKED, "ada@lab.example")


def a_record(user: str, start: datetime, days: float, id: str = "b", cards: int = 1) -> BookingRecord:
    booking = Booking(id, user, A6000, start, start + days * DAY, cards)
    return BookingRecord(booking, created_at=start - DAY, created_by=user)


# --- the map ---------------------------------------------------------------------------------------------------------


def test_a_card_says_in_words_all_that_its_picture_shows() -> None:
    ledger = Ledger([a_node("n1")], [held("train", "n1", 0, 8138)])

    assert see_node(ledger, "n1", booked).cards[0].words == (
        "GPU 0 of n1, RTX A6000; 8,138 of 16,276 MiB free; held by lab/train (booked, 8,138 MiB, promised)"
    )


def test_the_fill_is_the_held_memory_and_the_pattern_the_tier() -> None:
    ledger = Ledger([a_node("n1")], [held("train", "n1", 0, 8138), held("all", "n1", 1, None)])
    half, full = (ElementTree.fromstring(draw(card)) for card in see_node(ledger, "n1", booked).cards)

    heights = [float(picture.find("rect[@class='share booked']").get("height", "0")) for picture in (half, full)]  # type: ignore[union-attr] # it is there
    assert heights[0] == pytest.approx(heights[1] / 2, abs=1)
    assert 'class="share no-tier"' in draw(see_node(ledger, "n1", nobody).cards[0])


def test_an_unhealthy_card_and_a_kept_one_look_different_and_are_not_free() -> None:
    node = a_node("n1", cards=3)
    ill = replace(node, gpus=(*node.gpus[:2], a_card("n1", 2, unusable="unhealthy: XID 79")))
    ledger = Ledger([ill])
    ledger.keep("GPU-n1-1", holder("urgent"))
    seen = see_node(ledger, "n1", nobody)

    assert [draw(card).split('"')[1] for card in seen.cards] == ["card well", "card kept", "card ill"]
    assert seen.idle == 1
    assert "kept for lab/urgent" in seen.cards[1].words
    assert "takes no new pod: unhealthy: XID 79" in seen.cards[2].words


def test_cards_of_one_island_are_bracketed_together() -> None:
    seen = see_node(Ledger([a_node("n1", islands="aab.")]), "n1", nobody)

    assert [(name, len(cards)) for name, cards in seen.islands] == [("a", 2), ("b", 1), ("", 1)]


def test_more_held_than_there_is_stays_inside_the_card() -> None:
    ledger = Ledger([a_node("n1")], [held("one", "n1", 0, None), held("two", "n1", 0, None)])
    card = see_node(ledger, "n1", nobody).cards[0]
    picture = ElementTree.fromstring(draw(card))

    assert card.free == 0
    assert all(float(rect.get("y", "0")) >= 0 for rect in picture.iter("rect"))
    assert totals(ledger).held_percent == 50
    assert totals(Ledger()).held_percent == 0


@pytest.mark.parametrize(
    ("annotations", "tier"),
    [
        pytest.param({"carrel.dev/tier": "booked"}, Tier.BOOKED, id="booked"),
        pytest.param({"carrel.dev/tier": "opportunistic"}, Tier.OPPORTUNISTIC, id="opportunistic"),
        pytest.param({"terminate-at": "1900-01-01T08:00:00Z"}, Tier.OPPORTUNISTIC, id="MAIA's mark"),
        pytest.param({"terminate-at": "2026-11-20T08:00:00Z"}, None, id="an end alone is no tier"),
        pytest.param({"terminate-at": "soon"}, None, id="nonsense is no tier"),
        pytest.param({"carrel.dev/tier": "royal"}, None, id="an unknown word is no tier"),
        pytest.param({}, None, id="nothing"),
    ],
)
def test_the_tier_is_what_the_webhook_wrote(annotations: dict[str, str], tier: Tier | None) -> None:
    pod = msgspec.convert(
        {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": []}}, views.Pod
    )

    assert tier_of(pod) is tier


def test_a_stream_goes_on_where_the_browser_was() -> None:
    ledger = Ledger([a_node("n1"), a_node("n2")])
    page = Mark("life", ledger.moment, 7)
    ledger.hold(held("train", "n2", 0, 100))
    now = Mark("life", ledger.moment, 7)

    assert now.since(str(page), ledger) == ["n2"]
    assert now.since(str(Mark("other", 0, 7)), ledger) is None, "another process counted those changes"
    assert now.since(str(Mark("life", 0, 8)), ledger) is None, "other nodes are shown there"
    assert now.since("nonsense", ledger) is None


def test_a_large_cluster_is_narrowed_by_name() -> None:
    ledger = Ledger([a_node(f"n-{number:04}", cards=1) for number in range(300)])

    assert shown(ledger, "")[-1] == "n-0199"
    assert shown(ledger, "-029") == [f"n-{number:04}" for number in range(290, 300)]


def test_an_event_is_one_event_whatever_lines_it_has() -> None:
    assert event("node-n1", "<p>\n\n  a</p>") == "event: node-n1\ndata: <p>\ndata:   a</p>\n\n"


# --- usage -----------------------------------------------------------------------------------------------------------


def test_each_hour_shows_the_part_of_the_cards_that_was_booked_until_now() -> None:
    records = [a_record("ada", NOON + timedelta(hours=1), 2 / 24), a_record("bob", NOON + timedelta(hours=2.5), 1)]

    (row,) = warmth(records, {A6000: Stock(A6000, 2, MiB(1))}, NOON, NOON + timedelta(hours=3.5))

    assert row.parts == [0, 0.5, 0.75, 0.25]
    assert row.name == "RTX A6000"


def test_the_heat_map_is_well_formed_and_joins_hours_of_one_shade() -> None:
    picture = heat_map.draw([Warmth("<a&b>", [0, 0.5, 0.5, 1.0])], NOON, UTC)
    ElementTree.fromstring(picture)

    assert picture.count('class="warm3"') == 1
    assert picture.count('class="warm5"') == 1
    assert "for 2 hours" in picture


@pytest.mark.parametrize(("part", "shade"), [(0, 0), (0.01, 1), (0.2, 2), (0.99, 5), (1, 5)])
def test_shades_rise_with_use(part: float, shade: int) -> None:
    assert heat_map.step(part) == shade


def test_memory_that_is_free_but_too_small_is_counted_for_each_size() -> None:
    ledger = Ledger([a_node("n1", cards=3)], [held("a", "n1", 0, 10000), held("b", "n1", 1, None)])

    found = {each.size: (each.fitting, each.lost, each.lost_memory) for each in fragments(ledger)}

    assert found == {"4,096 MiB": (2, 0, 0), "8,192 MiB": (1, 1, 6276), "a whole card": (1, 1, 6276)}
    assert fragments(Ledger()) == []


def test_a_spreadsheet_runs_nothing_that_a_person_is_called() -> None:
    text = as_csv([Use('=HYPERLINK("x")', A6000, 2, 1.5)], NOON, NOON + DAY)

    assert text.splitlines() == [
        "from,until,person,model,bookings,card_hours",
        '2026-11-16T12:00:00+00:00,2026-11-17T12:00:00+00:00,"\'=HYPERLINK(""x"")",NVIDIA-RTX-A6000,2,1.50',
    ]


# --- other rules -----------------------------------------------------------------------------------------------------


def test_what_other_rules_would_break_is_known_before_they_are_set() -> None:
    records = [
        a_record("ada", NOON, 10, "long"),
        a_record("bob", NOON, 2, "short"),
        a_record("bob", NOON + 7 * DAY, 2, "soon after"),
    ]

    assert [found.record.booking.id for found in conflicts(records, Rules(cooldown=timedelta(0)))] == []
    assert [found.record.booking.id for found in conflicts(records, Rules(max_duration=7 * DAY))] == [
        "long",
        "soon after",
    ]
    assert [found.record.booking.id for found in conflicts(records, Rules(cooldown=3 * DAY))] == []
