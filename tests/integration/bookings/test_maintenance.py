"""Maintenance of nodes and GPUs: shown before it is set whom it hits, right in the calendar, and told to people."""

from typing import Any

from carrel.bookings.maintenance import HeldPod
from carrel.ids import BookingId
from carrel.ledger.gpus import Node
from tests.kit.booking import ADMIN, MEMBER, OTHER, Caller, Opened, at, made
from tests.kit.gpus import A100, A6000, N1, N2, a_gpu

MACHINES = (
    Node(N1, tuple(a_gpu(N1, index, model=model) for index, model in enumerate((A6000, A6000, A100)))),
    Node(N2, (a_gpu(N2, 0, model=A6000),)),
)


def window(*places: str, first: float = 1, last: float = 2) -> dict[str, Any]:
    return {"places": places, "start": at(first), "end": at(last), "why": "new fans"}


async def free_by_day(caller: Caller, model: str = "a6000") -> list[int]:
    [item] = (await caller.get(f"/api/v1/availability?days=4&model={model}")).json["items"]
    return [each["free"] for each in item["days"]]


async def told(opened: Opened) -> list[tuple[str, str, dict[str, str]]]:
    async with opened.service.queries.store.reading() as reading:
        entries = await reading.log_after(0)
    return [(e.action, e.subject, dict(e.details)) for e in entries if e.action.startswith("maintenance") and e.subject]


async def test_a_node_closes_its_gpus_of_every_model_and_no_others(opened: Opened, ada: Caller, eva: Caller) -> None:
    opened.inventory.machines = MACHINES

    kept = await eva.post("/api/v1/maintenance", window(N1, first=1, last=2))

    assert (kept.status, kept.json["places"], kept.json["model"]) == (201, [N1], "")
    assert kept.json["hit"] == {"models": {A6000: 2, A100: 1}, "bookings": [], "pods": []}
    assert (await free_by_day(ada), await free_by_day(ada, "a100")) == ([3, 1, 1, 3], [1, 0, 0, 1])
    refused = await ada.book(model="a100", days=3)
    assert "1 GPU by maintenance (new fans)" in refused.json["detail"]


async def test_two_windows_of_the_same_gpus_are_counted_once(opened: Opened, ada: Caller, eva: Caller) -> None:
    opened.inventory.machines = MACHINES
    for places in ([N1], [f"{N1}/0"], [N1, N2]):
        assert (await eva.post("/api/v1/maintenance", window(*places))).status == 201

    assert await free_by_day(ada) == [3, 0, 0, 3]
    items = (await ada.get("/api/v1/maintenance")).json["items"]
    assert sorted(tuple(item["places"]) for item in items) == [(N1,), (N1, N2), (f"{N1}/0",)]


async def test_a_preview_names_whom_it_hits_and_changes_nothing(opened: Opened, ada: Caller, eva: Caller) -> None:
    opened.inventory.machines = MACHINES
    mine = await made(ada, gpus=2, days=3)
    opened.inventory.pods = (
        HeldPod("lab/train", MEMBER, BookingId(mine["id"]), None),
        HeldPod("lab/loose", OTHER),
    )

    seen = await eva.post("/api/v1/maintenance/preview", window(N1))

    hit = seen.json["hit"]
    assert [(b["id"], b["user"], b["pods"], b["lacks_gpus"]) for b in hit["bookings"]] == [
        (mine["id"], MEMBER, ["lab/train"], True)
    ]
    assert hit["pods"] == [{"name": "lab/loose", "person": OTHER}]
    assert (await eva.get("/api/v1/maintenance")).json["items"] == []
    assert await told(opened) == []


async def test_whom_it_hits_is_told_once_and_again_when_it_is_called_off(
    opened: Opened, ada: Caller, eva: Caller
) -> None:
    opened.inventory.machines = MACHINES
    mine = await made(ada, gpus=2, days=3)
    opened.inventory.pods = (
        HeldPod("lab/train", MEMBER, BookingId(mine["id"]), None),
        HeldPod("lab/loose", OTHER),
        HeldPod("kube-system/exporter", ""),
    )
    kept = await eva.post("/api/v1/maintenance", window(N1))

    times = {"maintenance": N1, "start": at(1), "end": at(2)}
    assert await told(opened) == [
        ("maintenance", MEMBER, {**times, "pods": "lab/train", "lacking": "1"}),
        ("maintenance", OTHER, {**times, "pods": "lab/loose"}),
    ]
    assert (await eva.delete(f"/api/v1/maintenance/{kept.json['id']}")).status == 204
    assert [entry[:2] for entry in (await told(opened))[2:]] == [
        ("maintenance-called-off", MEMBER),
        ("maintenance-called-off", OTHER),
    ]


async def test_members_of_a_group_are_told_of_their_own_pods_and_who_booked_of_all(
    opened: Opened, ada: Caller, eva: Caller
) -> None:
    opened.inventory.machines = MACHINES
    await opened.manage("vision", MEMBER, members=(OTHER,))
    group = (await ada.book(group="vision", start=at(0), days=3)).json
    of_the_group = BookingId(group["id"])
    opened.inventory.pods = (
        HeldPod("lab/mine", MEMBER, of_the_group, None),
        HeldPod("lab/theirs", OTHER, of_the_group, None),
    )

    await eva.post("/api/v1/maintenance", window(N1))

    assert [(person, facts["pods"]) for _, person, facts in await told(opened)] == [
        (MEMBER, "lab/mine, lab/theirs"),
        (OTHER, "lab/theirs"),
    ]


async def test_a_maintenance_that_is_asked_for_twice_is_set_and_told_once(
    opened: Opened, ada: Caller, eva: Caller
) -> None:
    """The command line repeats a request whose answer was lost; a person clicks twice."""
    opened.inventory.machines = MACHINES
    await made(ada, gpus=2, days=3)
    of_model = {"model": "a6000", "gpus": 2, "start": at(1), "end": at(2), "why": "lent"}
    for asked in (window(N2, N1, f"{N2}/0"), of_model):
        first = await eva.post("/api/v1/maintenance", asked)
        before = await told(opened)
        again = await eva.post("/api/v1/maintenance", asked)

        assert (again.status, again.json) == (201, first.json)
        assert await told(opened) == before

    others = [window(N1, N2, last=3), {**window(N1, N2), "why": "dust"}, window(N1), {**of_model, "gpus": 1}]
    for other in others:
        assert (await eva.post("/api/v1/maintenance", other)).status == 201
    assert len((await eva.get("/api/v1/maintenance")).json["items"]) == 2 + len(others)


async def test_everything_that_is_wrong_is_said_at_once_and_nothing_is_set(opened: Opened, eva: Caller) -> None:
    opened.inventory.machines = MACHINES

    refused = await eva.post("/api/v1/maintenance", window("n7", f"{N1}/9", N1, first=2, last=1))

    assert (refused.status, refused.codes) == (422, ["unknown-place", "unknown-place", "end-after-start"])
    past = await eva.post("/api/v1/maintenance", window(N1, first=-2, last=-1))
    assert past.codes == ["not-in-the-past"]
    both = await eva.post("/api/v1/maintenance", {**window(N1), "model": "a6000"})
    neither = await eva.post("/api/v1/maintenance", window())
    assert (both.codes, neither.codes) == (["what"], ["what"])
    assert (await eva.get("/api/v1/maintenance")).json["items"] == []


async def test_only_lab_admins_set_it_or_see_whom_it_hits(opened: Opened, ada: Caller) -> None:
    opened.inventory.machines = MACHINES

    for path in ("/api/v1/maintenance", "/api/v1/maintenance/preview"):
        assert (await ada.post(path, window(N1))).status == 403
    assert ADMIN != MEMBER


async def test_a_node_that_is_gone_and_comes_back_is_closed_again(opened: Opened, ada: Caller, eva: Caller) -> None:
    opened.inventory.machines = MACHINES
    assert (await eva.post("/api/v1/maintenance", window(N1))).status == 201

    opened.inventory.machines = MACHINES[1:]
    assert await free_by_day(ada) == [1, 1, 1, 1]
    opened.inventory.machines = MACHINES
    assert await free_by_day(ada) == [3, 1, 1, 3]
