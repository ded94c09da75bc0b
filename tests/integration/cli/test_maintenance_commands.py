"""`carrel maintenance list|add|remove` against a real `carrel booking`, as admins type them."""

import json
from collections.abc import Iterator

import pytest

from tests.integration.cli.test_booking_commands import Person
from tests.kit.booking_service import BookingProcess, booking_process

TIMES = ("--from", "2027-01-12T08:00", "--until", "2027-01-12T18:00")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingProcess]:
    with booking_process(tmp_path_factory.mktemp("booking")) as service:
        yield service


def test_an_admin_sees_whom_it_hits_sets_it_and_calls_it_off(service: BookingProcess) -> None:
    eva, ada = Person(service, "eva@lab.example", "lab-admin"), Person(service, "ada@lab.example")
    booked = ("--from", "2027-01-12", "--days", "2")
    assert ada.types("book", "a6000", "--gpus", "2", *booked).code == 0

    seen = eva.types("maintenance", "add", "n1/0", *TIMES, "--why", "new fans", "--dry-run")
    assert seen.code == 0, seen
    assert "closes:    1 × NVIDIA-RTX-A6000" in seen.out
    assert "booking:   ada@lab.example: NVIDIA-RTX-A6000, 2 GPUs" in seen.out
    assert "more is booked than is left" in seen.out
    assert eva.types("maintenance", "list").out.startswith("No maintenance is planned.")

    not_asked = eva.types("maintenance", "add", "n1/0", *TIMES, "--why", "new fans")
    assert (not_asked.code, "n1/0" in not_asked.err, "--yes" in not_asked.err) == (2, True, True)
    assert "✓ Set" in eva.types("maintenance", "add", "n1/0", *TIMES, "--why", "new fans", "--yes").out
    [kept] = json.loads(ada.types("maintenance", "list", "-o", "json").out)
    assert (kept["places"], kept["created_by"], kept["why"]) == (["n1/0"], "eva@lab.example", "new fans")

    assert kept["id"][:8] in (listed := eva.types("maintenance", "list").out) and kept["id"] not in listed
    for short in ("", kept["id"][:1]):
        refused = eva.types("maintenance", "remove", short)
        assert (refused.code, "Give at least 4 digits of its id." in refused.err) == (2, True), refused
    assert "✓ Removed: the maintenance of n1/0" in eva.types("maintenance", "remove", kept["id"][:8]).out
    assert eva.types("maintenance", "remove", kept["id"][:8]).code == 2


def test_every_mistake_is_named_at_once(service: BookingProcess) -> None:
    eva = Person(service, "eva@lab.example", "lab-admin")

    wrong = eva.types("maintenance", "add", "n7", "n1/99", *TIMES, "--why", "fans", "--yes")

    assert wrong.code == 3
    assert "“n7” is no node with GPUs" in wrong.err
    assert "“n1/99” is no node with GPUs" in wrong.err
    counted = eva.types("maintenance", "add", "n1", "--gpus", "2", *TIMES, "--why", "fans", "--yes")
    assert (counted.code, "--gpus counts GPUs of a --model" in counted.err) == (2, True), counted
    assert eva.types("maintenance", "list").out.startswith("No maintenance is planned.")
    assert "--until and --why" in eva.types("maintenance", "add", "n1").err
    assert Person(service, "bob@lab.example").types("maintenance", "add", "n1", *TIMES, "--why", "x", "--yes").code == 7
