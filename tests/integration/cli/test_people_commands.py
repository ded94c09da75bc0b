"""`carrel group`, `carrel person remove`, `carrel log` and `carrel change` against a real `carrel booking`."""

import csv
import io
import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.test_booking_commands import Person
from tests.kit.booking_service import BookingProcess, booking_process


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingProcess]:
    with booking_process(tmp_path_factory.mktemp("booking")) as service:
        yield service


def test_a_course_is_put_into_a_group_from_a_file_and_taken_off_again(service: BookingProcess, tmp_path: Path) -> None:
    eva = Person(service, "eva@lab.example", "lab-admin")
    people = [f"s{number}@lab.example" for number in range(30)]
    file = tmp_path / "people.txt"
    file.write_text("\ufeff# the course\n\n" + "\n".join(people[:-1]) + f"\nLast One <{people[-1].upper()}>\n")

    assert "✓ course: 30 added, 0 were" in eva.types("group", "add", "course", "--file", str(file)).out
    assert "✓ course: 1 added, 30 were" in eva.types("group", "add", "course", *people, "new@lab.example").out
    assert eva.types("group", "add", "course", "eva@lab.example", "--manager").code == 0
    again = eva.types("group", "add", "course", "eva@lab.example").out
    assert "0 added, 0 were" in again
    assert "eva@lab.example is a manager and stays one; to change that, first: carrel group remove course eva@" in again
    listed = json.loads(eva.types("group", "list", "course", "-o", "json").out)
    assert len(listed) == 32
    assert [item["email"] for item in listed if item["role"] == "manager"] == ["eva@lab.example"]

    assert "31 taken off" in eva.types("group", "remove", "course", "new@lab.example", *people).out
    assert "0 taken off" in eva.types("group", "remove", "course", "new@lab.example").out


def test_every_mistake_of_a_list_is_named_with_its_line_and_nobody_is_added(
    service: BookingProcess, tmp_path: Path
) -> None:
    eva = Person(service, "eva@lab.example", "lab-admin")
    file = tmp_path / "people.txt"
    file.write_text("ada@lab.example\nbob\n\ncleo@lab.example, dora@\n")

    refused = eva.types("group", "add", "seminar", "--file", str(file))

    assert refused.code == 2, refused
    assert "Line 2: “bob” is not an e-mail address" in refused.err
    assert "Line 4: “dora@” is not an e-mail address" in refused.err
    assert "There is no such group" in eva.types("group", "list", "seminar").out
    member = Person(service, "kim@lab.example")
    assert member.types("group", "add", "seminar", "kim@lab.example").code == 7
    assert "cannot be read" in eva.types("group", "add", "seminar", "--file", "/no/such").err


def test_a_person_is_removed_after_everything_that_ends_was_shown(service: BookingProcess) -> None:
    boss, leo = Person(service, "boss@lab.example", "platform-admin"), Person(service, "leo@lab.example")
    assert leo.types("book", "a100", "--days", "5").code == 0
    boss.types("group", "add", "vision", "leo@lab.example")
    browser = service.browser("leo@lab.example")

    seen = boss.types("person", "remove", "leo@lab.example", "--dry-run")
    assert "ends:     1 booking" in seen.out
    assert "booking:  NVIDIA-A100-SXM4-80GB, 1 GPU, until" in seen.out
    assert "ends:     2 sessions" in seen.out
    assert "ends:     1 token" in seen.out
    assert "the place in the group vision" in seen.out
    assert leo.types("list").code == 0, "a dry run changes nothing"
    assert boss.types("person", "remove", "leo@lab.example").code == 2, "a reason is needed"

    done = boss.types("person", "remove", "leo@lab.example", "--reason", "left the lab", "--yes")
    assert "✓ Removed: leo@lab.example" in done.out, done
    assert leo.types("list").code == 7, "the token is revoked"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        browser.open(f"{service.url}/")
    assert boss.types("list", "-A", "--search", "leo@", "-o", "json").out.count('"cancelled"') == 1
    again = boss.types("person", "remove", "leo@lab.example", "--reason", "left the lab", "--yes")
    assert (again.code, "Ended: nothing, they had nothing here" in again.out) == (0, True)
    assert "Nothing in the log matches" in boss.types("log", "--action", "danced").out
    logged = list(csv.DictReader(io.StringIO(boss.types("log", "--person", "leo@lab.example", "-o", "csv").out)))
    assert [entry["action"] for entry in logged][:2] == ["person-removed", "cancelled"]
    assert "1 booking" in logged[0]["details"], logged[0]

    admin = Person(service, "eva@lab.example", "lab-admin")
    assert admin.types("person", "remove", "boss@lab.example", "--dry-run").code == 7
    assert "cannot remove yourself" in boss.types("person", "remove", "boss@lab.example", "--dry-run").err


def test_a_planned_booking_gets_another_start_model_and_number(service: BookingProcess) -> None:
    mia = Person(service, "mia@lab.example")
    booked = mia.types("book", "a6000", "--from", "2027-02-01", "--days", "3", "-o", "json")
    assert booked.code == 0, booked

    tried = mia.types("change", "--model", "a100", "--gpus", "3", "--from", "2027-02-05", "--dry-run")
    assert "NVIDIA-A100-SXM4-80GB, 3 GPUs, Fri 05 Feb 2027 00:00 CET until Mon 08 Feb" in tried.out
    assert mia.types("change", "--model", "a100", "--gpus", "3", "--from", "2027-02-05").code == 0
    now = json.loads(mia.types("show", "-o", "json").out)
    assert (now["model"], now["gpus"], now["start"], now["end"]) == (
        *("NVIDIA-A100-SXM4-80GB", 3),
        *("2027-02-04T23:00:00Z", "2027-02-07T23:00:00Z"),
    )

    refused = mia.types("change", "--model", "a6000", "--days", "20")
    assert refused.code == 3
    assert "2 GPUs of NVIDIA-RTX-A6000 to book; 3 are asked for" in refused.err
    assert "at most 14 d" in refused.err
    assert mia.types("change").code == 2
    for absurd in (("--days", "1e300"), ("--days", "nan"), ("--from", "9999-12-31"), ("--from", "1970-01-01")):
        refused = mia.types("change", *absurd)
        assert (refused.code in (2, 3), refused.err.startswith("✗ ")) == (True, True), refused
