"""A person chooses on their account page, or by the API, how to be told things, and tests it. Admins see failures."""

from collections.abc import AsyncIterator

import pytest

from carrel.bookings.notifications.channels import POSTS, OwnChannel
from carrel.bookings.notifications.choices import MessageChoices
from carrel.bookings.notifications.destinations import checked_session
from carrel.bookings.notifications.messages import Notification, Occasion
from carrel.bookings.people import Role
from carrel.bookings.store.outbox import Planned
from tests.integration.pages.visitor import Visitor, a_visitor, text_of
from tests.kit.booking import ADMIN, MEMBER, NOW, Opened
from tests.kit.sinks import PostSink

TOPICS = {f"topic-{name}": "on" for name in ("bookings", "ends", "gpu-needed", "lacks-gpus", "maintenance")}


@pytest.fixture
async def sink(opened: Opened) -> AsyncIterator[PostSink]:
    async with PostSink().listening() as sink:
        hosts = (sink.host,)
        async with checked_session(lambda: hosts) as http:
            of = {name: OwnChannel(request, http, hosts) for name, request in POSTS.items()}
            opened.service.channels.take(of, hosts)
            yield sink


@pytest.fixture
async def ada(opened: Opened) -> Visitor:
    return await a_visitor(opened, MEMBER)


async def choices(opened: Opened) -> MessageChoices:
    return (await opened.people.person(MEMBER)).messages


async def test_a_lab_without_channels_says_so(ada: Visitor) -> None:
    assert "This lab sends no messages" in text_of(await ada.get("/account"))


async def test_a_person_gives_an_address_tests_it_and_takes_it_away(
    opened: Opened, ada: Visitor, sink: PostSink
) -> None:
    url = f"{sink.url}/services/secret-words-x9Yz"
    saved = await ada.send("/account/messages", slack=url, **TOPICS)
    assert (saved.status, saved.headers["location"]) == (303, "/account?done=messages")
    assert await choices(opened) == MessageChoices(True, {"slack": url})

    page = text_of(await ada.get("/account"))
    assert "x9Yz" in page and "secret-words" not in page and "Send a test by Slack" in page
    tested = await ada.send("/account/messages/test", channel="slack")
    assert (tested.status, sink.calls) == (303, ["POST /hook/services/secret-words-x9Yz"])
    assert b"A test message from Carrel" in sink.posts[0][1]

    sink.status = 404
    failed = await ada.send("/account/messages/test", channel="slack")
    assert failed.status == 422 and "did not arrive: answered 404" in text_of(failed)

    await ada.send("/account/messages", **{"without-slack": "on"}, **TOPICS)
    assert await choices(opened) == MessageChoices()


async def test_saving_again_keeps_an_address_and_switches_occasions_off(
    opened: Opened, ada: Visitor, sink: PostSink
) -> None:
    await ada.send("/account/messages", slack=sink.url, **TOPICS)
    await ada.send("/account/messages", slack="", **{"topic-ends": "on"})

    muted = frozenset({"bookings", "gpu-needed", "lacks-gpus", "maintenance"})
    assert await choices(opened) == MessageChoices(True, {"slack": sink.url}, muted)


async def test_an_address_that_no_admin_allowed_is_refused_and_changes_nothing(
    opened: Opened, ada: Visitor, sink: PostSink
) -> None:
    refused = await ada.send("/account/messages", slack=sink.url, webhook="http://10.0.0.1/x", **TOPICS)

    assert refused.status == 422 and "a webhook: expected https://HOST/PATH" in text_of(refused)
    assert await choices(opened) == MessageChoices()


async def test_a_test_goes_only_where_the_person_is_told_already(ada: Visitor, sink: PostSink) -> None:
    for channel in ("webhook", "lab", "mail", "nothing"):
        assert (await ada.send("/account/messages/test", channel=channel)).status == 422
    assert sink.calls == []


async def test_the_same_by_the_api(opened: Opened, sink: PostSink) -> None:
    ada = await opened.caller(MEMBER)
    assert (await ada.get("/api/v1/me/messages")).json == {
        "mail": True,
        "addresses": {},
        "muted": [],
        "available": ["slack", "teams", "webhook"],
    }

    given = {"addresses": {"teams": f"{sink.url}/abcd"}, "muted": ["bookings"]}
    shown = (await ada.patch("/api/v1/me/messages", given)).json
    assert (shown["addresses"], shown["muted"]) == ({"teams": f"{sink.host}/…abcd"}, ["bookings"])
    tested = await ada.post("/api/v1/me/messages/test", {"channel": "teams"})
    assert (tested.json, len(sink.posts)) == ({"arrived": True, "why": ""}, 1)

    await ada.patch("/api/v1/me/messages", {"mail": False, "addresses": {"teams": ""}})
    assert await choices(opened) == MessageChoices(False, {}, frozenset({"bookings"}))
    for wrong in ({"addresses": {"lab": "https://x"}}, {"muted": ["everything"]}, {"addresses": {"mail": "bob@x.org"}}):
        assert (await ada.patch("/api/v1/me/messages", wrong)).status == 422, wrong
    assert await choices(opened) == MessageChoices(False, {}, frozenset({"bookings"}))


async def test_admins_see_what_does_not_arrive(opened: Opened, ada: Visitor, sink: PostSink) -> None:
    outbox, admin = opened.service.outbox, await a_visitor(opened, ADMIN, Role.LAB_ADMIN)
    assert "Messages that do not arrive" not in text_of(await admin.get("/admin"))
    await outbox.add([Planned(Notification("log-1", Occasion.BOOKED, MEMBER, NOW), "slack", NOW)])
    (delivery,) = await outbox.take(NOW, NOW, 5)
    await outbox.failed(delivery, "answered 404", None)

    page = text_of(await admin.get("/admin"))
    assert "Messages that do not arrive" in page and "answered 404" in page and "given up" in page
    assert "answered 404. Carrel has given up." in text_of(await ada.get("/account"))
