"""An admin plans maintenance on a page: chooses a node or GPUs, sees whom it hits, sets it; everybody sees it then."""

import re
from urllib.parse import urlencode

import pytest

from carrel.bookings.maintenance import HeldPod
from carrel.bookings.people import Role
from carrel.ids import BookingId
from carrel.ledger.gpus import Node
from tests.integration.pages.visitor import Visitor, a_visitor, text_of
from tests.kit.booking import ADMIN, MEMBER, Opened, made
from tests.kit.gpus import A100, A6000, N1, N2, a_gpu

MACHINES = (
    Node(N1, tuple(a_gpu(N1, index, model=model) for index, model in enumerate((A6000, A6000, A100)))),
    Node(N2, (a_gpu(N2, 0, model=A6000),)),
)
TIMES = {"start": "2026-11-17T08:00", "end": "2026-11-17T18:00"}


@pytest.fixture
async def admin(opened: Opened) -> Visitor:
    opened.inventory.machines = MACHINES
    return await a_visitor(opened, ADMIN, Role.LAB_ADMIN)


def words_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page))


async def test_the_page_offers_nodes_their_gpus_and_models(admin: Visitor) -> None:
    page = text_of(await admin.get("/admin/maintenance"))

    assert re.findall(r'<option value="([^"]+)"', page) == [
        *(f"node:{N1}", f"node:{N2}"),
        *(f"model:{A100}", f"model:{A6000}"),
    ]
    assert re.findall(r'name="gpu" value="([^"]+)"', page) == [gpu.uuid for gpu in MACHINES[0].gpus]
    of_model = text_of(await admin.get(f"/admin/maintenance/hit?what=model:{A6000}"))
    assert 'name="gpus"' in of_model
    assert 'name="gpu"' not in of_model


async def test_whom_it_hits_is_shown_before_it_is_set(opened: Opened, admin: Visitor) -> None:
    mine = await made(await opened.caller(MEMBER), gpus=2, days=3)
    opened.inventory.pods = (HeldPod("lab/train", MEMBER, BookingId(mine["id"])), HeldPod("lab/loose", "bob@lab.org"))
    path = f"/admin/maintenance/hit?what=node:{N1}&start={TIMES['start']}&end={TIMES['end']}"

    told = words_of(text_of(await admin.get(path)))

    assert "1 × A100 SXM4 80GB, 2 × RTX A6000 cannot be booked in that time." in told
    assert f"The booking of {MEMBER}, 2 × RTX A6000" in told
    assert "more is booked than is left; now there lab/train." in told
    assert "The pod lab/loose of bob@lab.org, which runs there now." in told


async def test_single_gpus_are_closed_and_everybody_sees_which_and_until_when(opened: Opened, admin: Visitor) -> None:
    gpu = MACHINES[0].gpus[1]
    sent = await admin.send("/admin/maintenance", what=f"node:{N1}", gpu=gpu.uuid, why="XID 79", **TIMES)
    assert sent.status == 303

    member = await a_visitor(opened, MEMBER)
    timeline = text_of(await member.get("/timeline"))
    assert "Maintenance of n1/1: 1 GPU until Tue 17 Nov 18:00, XID 79" in timeline
    assert "n1/1" in text_of(await admin.get("/admin"))
    table = words_of(text_of(await member.get("/timeline/table")))
    assert "Maintenance of n1/1: XID 79" in table


async def test_everything_wrong_with_the_form_is_said_at_once_and_it_keeps_what_was_typed(admin: Visitor) -> None:
    refused = await admin.send("/admin/maintenance", what="node:n9", start="x", end=TIMES["end"], why="")

    told = words_of(text_of(refused))
    assert refused.status == 422
    assert "From: “x” is not a date and time." in told
    assert "Give a reason" in told
    unknown = await admin.send("/admin/maintenance", what="node:n9", why="fans", **TIMES)
    assert "“n9” is no node with GPUs" in text_of(unknown)
    assert 'value="fans"' in text_of(unknown)


async def test_members_see_neither_the_page_nor_whom_it_hits(opened: Opened, admin: Visitor) -> None:
    member = await a_visitor(opened, MEMBER)

    for path in ("/admin/maintenance", "/admin/maintenance/hit"):
        assert (await member.get(path)).status == 403
    assert (await member.send("/admin/maintenance", what=f"node:{N1}", why="x", **TIMES)).status == 403
    assert "No maintenance is planned" in text_of(await admin.get("/admin"))


async def test_ticked_gpus_of_another_node_than_the_chosen_one_are_never_closed(admin: Visitor) -> None:
    """Without JavaScript the page still shows the GPUs of the node that was chosen before."""
    form = {"gpu": MACHINES[1].gpus[0].uuid, "why": "fans", **TIMES}
    for what, name in ((f"node:{N1}", N1), (f"model:{A6000}", "RTX A6000")):
        refused = await admin.send("/admin/maintenance", what=what, **form)

        assert refused.status == 422
        assert f"A GPU that you ticked is not of {name}: choose again what is closed." in text_of(refused)
    assert "No maintenance is planned" in text_of(await admin.get("/admin"))

    seen = words_of(text_of(await admin.get(f"/admin/maintenance/hit?{urlencode({'what': f'node:{N1}', **form})}")))
    assert "1 × A100 SXM4 80GB, 2 × RTX A6000 cannot be booked in that time." in seen


async def test_whom_it_hits_is_shown_without_javascript_and_no_secret_gets_into_an_address(admin: Visitor) -> None:
    page = text_of(await admin.get("/admin/maintenance"))
    assert "formmethod" not in page

    [name, value] = re.findall(r'<button name="(\w+)" value="(\w+)" formnovalidate>Show whom it hits', page)[0]
    seen = await admin.send("/admin/maintenance", what=f"node:{N2}", why="", **{name: value}, **TIMES)

    assert seen.status == 200
    assert "1 × RTX A6000 cannot be booked in that time." in words_of(text_of(seen))
    assert "No maintenance is planned" in text_of(await admin.get("/admin"))


async def test_a_form_that_is_sent_twice_sets_one_maintenance(opened: Opened, admin: Visitor) -> None:
    for _ in range(2):
        assert (await admin.send("/admin/maintenance", what=f"node:{N1}", why="fans", **TIMES)).status == 303

    items = (await (await opened.caller(MEMBER)).get("/api/v1/maintenance")).json["items"]
    assert [item["places"] for item in items] == [[N1]]
