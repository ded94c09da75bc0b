"""Bookings of groups over HTTP: who may make, change, cancel and see them, and who is in a group."""

from dataclasses import replace

import pytest

from carrel.bookings.groups import GroupSource
from carrel.bookings.notifications.notifier import notification_of
from carrel.bookings.people import Scope
from carrel.bookings.queries import group_members
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.people import SqlPeople
from carrel.configuration.schema import BookingRules
from tests.kit.booking import ADMIN, DAY, MEMBER, NOW, OTHER, Caller, Opened, at, made, opened_on, with_rules
from tests.kit.gpus import A6000

BOOKINGS, GROUPS = "/api/v1/bookings", "/api/v1/groups"
GUEST = "gil@lab.org"
LIST_BOB = f"{GROUPS}/vision/people/{OTHER}"


@pytest.fixture
async def vision(opened: Opened) -> Opened:
    """Ada manages the group “vision”, and Bob is a member."""
    await opened.manage("vision", MEMBER, members=(OTHER,))
    return opened


# --- booking for a group ---------------------------------------------------------------------------------------------


async def test_a_manager_books_changes_and_cancels_for_the_group(vision: Opened, ada: Caller, eva: Caller) -> None:
    booking = await made(ada, start=at(1), end=at(3), gpus=2, group="vision")
    longer = await ada.patch(f"{BOOKINGS}/{booking['id']}", {"end": at(4)})
    gone = await ada.post(f"{BOOKINGS}/{booking['id']}/cancel")

    assert (booking["group"], booking["user"], booking["created_by"]) == ("vision", MEMBER, MEMBER)
    assert (longer.status, longer.json["group"], longer.json["end"]) == (200, "vision", at(4))
    assert (gone.status, gone.json["state"]) == (200, "cancelled")
    entries = (await eva.get("/api/v1/audit")).json["items"]
    assert [(entry["action"], entry["details"].get("group")) for entry in entries if entry["booking"]] == [
        ("cancelled", "vision"),
        ("changed", "vision"),
        ("booked", "vision"),
    ]


@pytest.mark.parametrize(
    ("group", "said"),
    [
        pytest.param("vision", "You are a member of the group “vision”, but only its managers", id="a member"),
        pytest.param("nlp", "For the group “nlp” only its managers", id="somebody else's group"),
        pytest.param("nowhere", "For the group “nowhere” only its managers", id="a group that does not exist"),
        pytest.param("VISION", "For the group “VISION” only its managers", id="another spelling"),
    ],
)
async def test_who_is_not_a_manager_is_refused_with_the_reason(
    vision: Opened, bob: Caller, group: str, said: str
) -> None:
    await vision.manage("nlp", GUEST)
    await vision.manage("audio", OTHER)

    for path in (BOOKINGS, f"{BOOKINGS}/preview"):
        refused = await bob.post(path, {"model": A6000, "days": 2, "group": group})

        assert (refused.status, refused.json["code"]) == (403, "forbidden")
        assert refused.json["detail"].startswith(said)
        assert refused.json["detail"].endswith("You manage “audio”.")
    assert (await bob.get(BOOKINGS)).json["items"] == []


async def test_a_member_cannot_change_or_cancel_another_manager_can(vision: Opened, ada: Caller, bob: Caller) -> None:
    booking = await made(ada, start=at(1), end=at(3), group="vision")
    where = f"{BOOKINGS}/{booking['id']}"

    for refused in (
        await bob.patch(where, {"end": at(2)}),
        await bob.post(f"{where}/preview", {"end": at(2)}),
        await bob.post(f"{where}/cancel"),
    ):
        assert (refused.status, refused.json["code"]) == (403, "forbidden")
    await vision.manage("vision", OTHER)
    assert (await bob.post(f"{where}/cancel")).status == 200


async def test_who_made_a_groups_booking_cannot_change_it_any_more_when_no_longer_a_manager(
    vision: Opened, ada: Caller, eva: Caller
) -> None:
    booking = await made(ada, start=at(1), end=at(3), group="vision")
    assert (await eva.delete(f"{GROUPS}/vision/people/{MEMBER}")).status == 204

    assert (await ada.post(f"{BOOKINGS}/{booking['id']}/cancel")).status == 403
    assert (await eva.post(f"{BOOKINGS}/{booking['id']}/cancel")).status == 200, "a lab admin always may"


async def test_a_lab_admin_books_for_every_group_that_exists(vision: Opened, eva: Caller) -> None:
    booked = await eva.book(days=2, group="vision")
    unknown = await eva.book(days=2, group="nowhere")

    assert booked.status == 201
    assert (unknown.status, unknown.json["code"]) == (404, "not-found")
    assert unknown.json["detail"] == "There is no group “nowhere”."


async def test_the_bookings_of_a_group_whose_people_are_gone_can_be_cancelled_by_an_admin(
    vision: Opened, ada: Caller, eva: Caller
) -> None:
    booking = await made(ada, start=at(1), end=at(3), group="vision")
    for email in (MEMBER, OTHER):
        assert (await eva.delete(f"{GROUPS}/vision/people/{email}")).status == 204

    assert (await eva.get(GROUPS)).json["items"] == []
    assert (await eva.post(f"{BOOKINGS}/{booking['id']}/cancel")).status == 200


async def test_a_booking_is_for_a_person_or_for_a_group(vision: Opened, eva: Caller) -> None:
    refused = await eva.book(days=2, group="vision", user=OTHER, reason="he asked")

    assert (refused.status, refused.json["code"]) == (422, "contradiction")
    assert "a person or for a group" in refused.json["detail"]


async def test_a_token_that_may_only_read_does_not_book_for_the_group(vision: Opened) -> None:
    reader = await vision.caller(MEMBER, frozenset({Scope.READ}))

    assert (await reader.book(days=2, group="vision")).status == 403


@pytest.mark.parametrize("name", ["vis\x00ion", "v" * 256, 7, None], ids=["control", "long", "number", "null"])
async def test_a_name_that_cannot_be_a_groups_is_malformed(vision: Opened, ada: Caller, name: object) -> None:
    refused = await ada.book(days=2, group=name)

    assert (refused.status, refused.json["code"]) == (400, "malformed")
    assert refused.json["problems"][0]["field"] == "group"


async def test_a_repeated_request_books_once_and_the_group_is_part_of_the_request(vision: Opened, ada: Caller) -> None:
    body = {"model": A6000, "start": at(1), "end": at(3), "group": "vision"}
    first = await ada.post(BOOKINGS, body, idempotency_key="k")
    again = await ada.post(BOOKINGS, body, idempotency_key="k")
    other = await ada.post(BOOKINGS, {**body, "group": ""}, idempotency_key="k")

    assert (first.status, again.status) == (201, 201)
    assert first.json["id"] == again.json["id"]
    assert (other.status, other.json["code"]) == (409, "idempotency-key-reused")


# --- rules -----------------------------------------------------------------------------------------------------------


async def test_own_bookings_and_those_of_groups_do_not_block_each_other(vision: Opened, ada: Caller) -> None:
    await vision.manage("nlp", MEMBER)
    vision.inventory.gpus[A6000] = 3
    await made(ada, days=2)
    await made(ada, days=2, group="vision")
    await made(ada, days=2, group="nlp")

    again = await ada.book(days=2, group="vision")

    assert again.status == 422
    assert again.codes == ["no-active-overlap", "cooldown", "capacity"]
    assert "The group's booking" in again.json["detail"]


async def test_the_cooldown_of_a_group_counts_whoever_of_its_managers_books(vision: Opened, ada: Caller) -> None:
    await vision.manage("vision", OTHER)
    bob = await vision.caller(OTHER)
    await made(ada, days=2, group="vision")
    vision.clock.now = NOW + 3 * DAY

    refused = await bob.book(days=2, group="vision")

    assert (refused.status, refused.codes) == (422, ["cooldown"])
    assert refused.json["earliest_start"] == at(16)
    assert "--group vision" in refused.json["hint"]
    own = (await bob.get("/api/v1/next-free?model=a6000")).json["earliest_start"]
    groups = (await bob.get("/api/v1/next-free?model=a6000&group=vision")).json["earliest_start"]
    assert (own, groups) == (at(3), at(16))


async def test_the_hint_for_too_many_gpus_works_also_for_a_name_with_a_space(opened: Opened, ada: Caller) -> None:
    await opened.manage("vision team", MEMBER)
    limited = with_rules(opened, BookingRules(max_gpus=1, group_max_gpus=2))
    ada, opened.inventory.gpus[A6000] = replace(ada, app=limited.app), 4

    of_group = await ada.book(days=2, gpus=3, group="vision team")
    own = await ada.book(days=2, gpus=3)

    assert (of_group.codes, own.codes) == (["group-max-gpus"], ["max-gpus"])
    assert of_group.json["detail"] == "A booking of a group has at most 2 GPUs; 3 are asked for."
    assert of_group.json["hint"] == "carrel book nvidia-rtx-a6000 --days 2 --gpus 2 --group 'vision team'"
    assert own.json["hint"] == "carrel book nvidia-rtx-a6000 --days 2"
    rules = {rule["code"]: rule for rule in (await ada.get("/api/v1/rules")).json["rules"]}
    assert rules["max-gpus"]["words"] == "at most 1 GPU"
    assert rules["group-max-gpus"]["words"] == "at most 2 GPUs for a group"


# --- who sees what ---------------------------------------------------------------------------------------------------


async def test_members_see_the_groups_bookings_with_its_note_others_without(
    vision: Opened, ada: Caller, bob: Caller
) -> None:
    guest = await vision.caller(GUEST)
    shared = await made(ada, start=at(1), end=at(3), group="vision", note="course")
    own = await made(bob, start=at(1), end=at(3))

    seen = (await bob.get(f"{BOOKINGS}?user=me&with_groups=true")).json["items"]
    assert {item["id"]: item["note"] for item in seen} == {shared["id"]: "course", own["id"]: ""}
    assert [item["id"] for item in (await bob.get(f"{BOOKINGS}?user=me")).json["items"]] == [own["id"]]
    (of_group,) = (await guest.get(f"{BOOKINGS}?group=vision")).json["items"]
    assert (of_group["id"], of_group["note"]) == (shared["id"], None)
    assert (await bob.get(f"{BOOKINGS}/{shared['id']}")).json["note"] == "course"
    assert (await guest.get(f"{BOOKINGS}/{shared['id']}")).json["note"] is None


async def test_the_calendar_of_a_member_has_the_groups_bookings(vision: Opened, ada: Caller, bob: Caller) -> None:
    shared = await made(ada, start=at(1), end=at(3), group="vision")
    url = (await bob.post("/api/v1/feed")).json["url"]

    feed = (await vision.nobody.get(url.partition("carrel.test")[2])).body.decode()

    assert f"UID:{shared['id']}@carrel" in feed
    assert f"SUMMARY:GPU: {A6000} (vision)" in feed


async def test_the_manager_who_booked_is_notified(vision: Opened, ada: Caller, eva: Caller) -> None:
    booking = await made(ada, start=at(1), end=at(3), group="vision")
    await eva.post(f"{BOOKINGS}/{booking['id']}/cancel", {"reason": "broken fan"})

    async with vision.service.queries.store.reading() as reading:
        entry = (await reading.log())[0]
    notification = notification_of(entry)

    assert notification is not None
    assert (notification.person, notification.facts["group"]) == (MEMBER, "vision")
    assert (notification.facts["actor"], notification.facts["why"]) == (ADMIN, "broken fan")


async def test_usage_names_the_group(vision: Opened, ada: Caller) -> None:
    await made(ada, days=2, group="vision")
    vision.clock.now = NOW + DAY

    (use,) = (await ada.get("/api/v1/usage")).json["items"]

    assert (use["user"], use["group"], use["gpu_hours"]) == (MEMBER, "vision", 24.0)


async def test_maias_answer_about_a_member_does_not_change(vision: Opened, ada: Caller) -> None:
    await made(ada, days=2, group="vision")

    for user in (MEMBER, OTHER):
        active = await vision.service.queries.active_booking(user)
        assert active is None, "MAIA's JSON knows one GPU of one person"


# --- the admin's list ------------------------------------------------------------------------------------------------


async def test_only_a_lab_admin_says_who_is_in_a_group(vision: Opened, ada: Caller) -> None:
    for refused in (
        await ada.call("PUT", LIST_BOB, {"role": "manager"}),
        await ada.delete(LIST_BOB),
    ):
        assert (refused.status, refused.json["code"]) == (403, "forbidden")
        assert refused.json["detail"] == "Only a lab admin may say who is in a group."


async def test_every_change_of_a_group_is_in_the_log_and_a_repetition_is_not(opened: Opened, eva: Caller) -> None:
    for role in ("member", "member", "manager"):
        assert (await eva.call("PUT", LIST_BOB, {"role": role, "reason": "course"})).status == 200
    assert (await eva.delete(f"{LIST_BOB}?reason=over")).status == 204
    gone = await eva.delete(LIST_BOB)

    assert (gone.status, gone.json["code"]) == (404, "not-found")
    entries = (await eva.get("/api/v1/audit")).json["items"]
    assert [(entry["action"], entry["subject"], entry["why"]) for entry in entries] == [
        ("group-removed", OTHER, "over"),
        ("group-manager", OTHER, "course"),
        ("group-member", OTHER, "course"),
    ]
    assert entries[0]["details"] == {"group": "vision"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        pytest.param(f"{GROUPS}/vision/people/bob", {"role": "member"}, 400, id="not an address"),
        pytest.param(LIST_BOB, {"role": "boss"}, 400, id="an unknown role"),
        pytest.param(LIST_BOB, {}, 400, id="no role"),
        pytest.param(LIST_BOB, {"role": "member", "more": 1}, 400, id="an unknown field"),
        pytest.param(f"{GROUPS}/ /people/{OTHER}", {"role": "member"}, 400, id="a name of spaces"),
        pytest.param(f"{GROUPS}/{'v' * 256}/people/{OTHER}", {"role": "member"}, 400, id="a long name"),
    ],
)
async def test_bad_input_changes_no_group(eva: Caller, path: str, body: object, status: int) -> None:
    refused = await eva.call("PUT", path, body)

    assert (refused.status, refused.json["code"]) == (status, "malformed")
    assert (await eva.get(GROUPS)).json["items"] == []


async def test_a_name_may_contain_slashes(opened: Opened, ada: Caller) -> None:
    await opened.manage("/lab/people/vision", MEMBER)

    assert [group["name"] for group in (await ada.get(GROUPS)).json["items"]] == ["/lab/people/vision"]
    assert (await ada.book(days=2, group="/lab/people/vision")).status == 201


async def test_people_see_their_own_groups_and_admins_all(vision: Opened, ada: Caller, eva: Caller) -> None:
    await vision.manage("nlp", GUEST)

    (mine,) = (await ada.get(GROUPS)).json["items"]
    assert mine == {
        "name": "vision",
        "people": [
            {"email": MEMBER, "role": "manager", "listed": True, "seen_at": None},
            {"email": OTHER, "role": "member", "listed": True, "seen_at": None},
        ],
        "may_book": True,
    }
    bob = await vision.caller(OTHER)
    assert [group["may_book"] for group in (await bob.get(GROUPS)).json["items"]] == [False]
    assert [group["name"] for group in (await eva.get(GROUPS)).json["items"]] == ["nlp", "vision"]


async def test_members_by_sign_in_are_read_with_those_of_the_list(database: Database) -> None:
    """What is mirrored into the cluster with each booking."""
    opened = opened_on(database)
    await opened.manage("vision", MEMBER)
    await SqlPeople(database).saw_groups(OTHER, GroupSource.IDENTITY_PROVIDER, ["vision", "staff"], NOW)

    async with SqlBookings(database).reading() as reading:
        assert await group_members(reading) == {"vision": {MEMBER, OTHER}}
    eva = await opened.caller(ADMIN)
    (group,) = (await eva.get(GROUPS)).json["items"]
    assert group["people"][1] == {"email": OTHER, "role": "member", "listed": False, "seen_at": at(0)}
    assert (await eva.book(days=2, group="staff")).status == 201, "an admin may also book for a group of the sign-in"


async def test_a_list_of_2000_people_is_taken_and_names_the_managers_that_stay(vision: Opened, eva: Caller) -> None:
    people = [f"Student {number} of the course <student{number}@lab.org>" for number in range(1999)]

    listed = await eva.post(f"{GROUPS}/vision/people", {"people": [*people, MEMBER], "role": "member"})

    assert listed.status == 200, listed.body
    assert (len(listed.json["changed"]), listed.json["unchanged"]) == (1999, 0)
    assert listed.json["stay_managers"] == [MEMBER]


@pytest.mark.parametrize(
    ("lines", "title", "problems", "last"),
    [
        pytest.param(
            *([f"s{number}@lab.org" for number in range(10_000)], "Too many people"),
            *(1, "The list has 10,000 people; at most 2,000 are taken at a time."),
            id="too many people",
        ),
        pytest.param(
            *(["=SUM(A1:A9)"] * 10_000, "10,000 mistakes in the list"),
            *(51, "9,950 more words are no address."),
            id="a table of something else",
        ),
    ],
)
async def test_a_list_of_10000_lines_is_refused_in_few_words(
    opened: Opened, eva: Caller, lines: list[str], title: str, problems: int, last: str
) -> None:
    refused = await eva.post(f"{GROUPS}/vision/people", {"people": lines, "role": "member"})

    assert (refused.status, refused.json["title"]) == (422, title), refused.body[:500]
    assert (len(refused.json["problems"]), refused.json["problems"][-1]["message"]) == (problems, last)
    assert (await eva.get(GROUPS)).json["items"] == []
