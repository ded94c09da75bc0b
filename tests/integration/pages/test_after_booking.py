"""What the pages say after a booking was made, and after a GPU was lost to one."""

from dataclasses import replace
from datetime import timedelta

from carrel.bookings.app import booking_app
from carrel.bookings.lab_configuration import LabConfiguration
from carrel.bookings.records import LogEntry
from carrel.configuration.current import CurrentConfiguration
from carrel.configuration.schema import Bookings, Configuration, HubSignIn, SignIn
from carrel.parsing.time import seconds
from tests.integration.pages.test_coverage_on_pages import Seen, seen
from tests.integration.pages.visitor import a_visitor, text_of
from tests.kit.booking import MEMBER, OTHER, at, made
from tests.kit.gpus import A6000

__all__ = ["seen"]

HUB = "https://hub.lab.example"


async def test_after_booking_people_see_a_pod_for_their_namespace_their_hub_and_an_entry_for_their_calendar(
    seen: Seen,
) -> None:
    at_hub = Configuration(bookings=Bookings(sign_in=SignIn(hub=HubSignIn(url=HUB))))
    service = replace(seen.opened.service, configuration=LabConfiguration(CurrentConfiguration(at_hub)))
    seen.opened.app = booking_app(service)
    ada = await a_visitor(seen.opened, MEMBER)
    booking = await seen.book()
    await seen.pod("earlier")

    page = text_of(await ada.get(f"/bookings/{booking}?done=booked"))
    entry = await ada.get(f"/bookings/{booking}/booking.ics")

    assert "namespace: lab" in page and "nvidia.com/gpu: &#34;1&#34;" in page and A6000 in page
    assert "carrel.dev/booking" not in page
    assert f'href="{HUB}"' in page and f'href="/bookings/{booking}/booking.ics"' in page
    assert entry.headers["content-type"].startswith("text/calendar")
    assert f"UID:{booking}@carrel" in text_of(entry) and text_of(entry).count("BEGIN:VEVENT") == 1


async def test_before_a_booking_starts_the_pod_names_it(seen: Seen) -> None:
    booking = (await made(await seen.opened.caller(MEMBER), days=5, start=at(2)))["id"]

    page = (await seen.shows(f"/bookings/{booking}")).replace("&#34;", '"')

    assert f'carrel.dev/booking: "{booking}"' in page and "waits until the booking starts" in page


async def test_others_are_not_told_what_to_do_with_a_booking(seen: Seen) -> None:
    booking = await seen.book(user=OTHER)

    assert "What now" not in await seen.shows(f"/bookings/{booking}")


# --- recently --------------------------------------------------------------------------------------------------------


async def lost(seen: Seen, uid: str, booking: str = "", *, days_ago: int = 0, held: int = 3) -> None:
    at = seen.opened.clock.now - timedelta(days=days_ago, minutes=1)
    details = {"namespace": "lab", "pod": "train", "ends": seconds(at), "then": "is created again without a GPU"}
    details |= {"uid": uid, "for": booking, "held": str(held)}
    entry = LogEntry(at, "the controller", "revoked", MEMBER, details=details)
    await seen.opened.service.outbox.note(f"revoked-{uid}", entry)


async def test_home_says_for_whom_a_gpu_was_taken_and_why_this_one_and_what_to_do(seen: Seen) -> None:
    booking = await seen.book(user=OTHER)
    await lost(seen, "uid-1", booking)

    home = await seen.shows("/")

    assert "lab/train lost its GPU Mon 16 Nov 12:59" in home
    assert f"It was needed for the booking of 1 × RTX A6000 by {OTHER} , which runs until Sat 21 Nov" in home.replace(
        f"{OTHER}, which", f"{OTHER} , which"
    )
    assert "After its end, the pod is created again without a GPU." in home
    assert "who holds more than an equal share" in home
    assert "No booking covered it, and your pods held 3 GPUs without a booking." in home
    assert "book a GPU , so that nobody can take it" in home or "book a GPU, so that nobody can take it" in home


async def test_what_was_called_off_or_is_long_ago_is_not_told(seen: Seen) -> None:
    await seen.runs("train")
    (pod,) = seen.replica.pods.store
    await lost(seen, pod.metadata.uid)
    await lost(seen, "uid-2", days_ago=8)

    assert "Recently" not in await seen.shows("/")


async def test_a_booking_that_is_not_known_any_more_is_no_mistake(seen: Seen) -> None:
    await lost(seen, "uid-3", "gone", held=1)

    home = await seen.shows("/")
    assert "It was needed for a booked pod." in home and "your pods held" not in home
