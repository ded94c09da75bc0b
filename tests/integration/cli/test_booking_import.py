"""`carrel import` against a real `carrel booking`: MAIA's bookings and their cooldowns."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.cli.test_booking_commands import Person
from tests.kit.booking_service import BookingProcess, booking_process

DAY = timedelta(days=1)
NOW = datetime.now(UTC).replace(microsecond=0)
A6000 = "NVIDIA-RTX-A6000"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingProcess]:
    with booking_process(tmp_path_factory.mktemp("booking")) as service:
        yield service


@pytest.fixture
def admin(service: BookingProcess) -> Person:
    return Person(service, "grace@lab.example", "lab-admin")


def a_booking(user: str, start: timedelta, end: timedelta, gpu: str = A6000) -> Mapping[str, str]:
    times = {"start_date": f"{NOW + start:%Y-%m-%d %H:%M:%S}", "end_date": f"{NOW + end:%Y-%m-%d %H:%M:%S}"}
    return {"user_email": f"{user}@lab.example", **times, "gpu": gpu, "namespace": "vision_lab"}


def as_csv(file: Path, bookings: Sequence[Mapping[str, str]]) -> str:
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, bookings[0].keys())
        writer.writeheader()
        writer.writerows(bookings)
    return str(file)


def test_bookings_that_run_and_cooldowns_are_taken_over_once(
    service: BookingProcess, admin: Person, tmp_path: Path
) -> None:
    running, over = a_booking("ada", -3 * DAY, 4 * DAY), a_booking("bob", -10 * DAY, -2 * DAY, "Gone-9000")
    file = as_csv(tmp_path / "bookings.csv", [running, over])

    first, again = admin.types("import", file), admin.types("import", file)
    assert (first.code, first.out) == (0, "2 bookings taken over.\n"), first.err
    assert (again.code, again.out) == (0, "0 bookings taken over; 2 were there already.\n")

    (mine,) = json.loads(Person(service, "ada@lab.example").types("list", "-o", "json").out)
    assert (mine["model"], mine["gpus"], mine["state"], mine["namespace"]) == (A6000, 1, "active", "vision-lab")
    bob = Person(service, "bob@lab.example").types("book", "a6000", "--days", "1")
    assert bob.code == 3 and "Cooldown" in bob.err, "it counts from the end of the booking in MAIA"

    Person(service, "ada@lab.example").types("cancel", "--yes")
    assert admin.types("import", file).out == "0 bookings taken over; 2 were there already.\n"


def test_all_mistakes_are_said_at_once_with_their_lines_and_nothing_is_taken_over(
    service: BookingProcess, admin: Person, tmp_path: Path
) -> None:
    bookings = [
        a_booking("cid", -DAY, 2 * DAY),
        a_booking("dan", -DAY, 2 * DAY, "H900"),
        a_booking("cid", DAY, 3 * DAY),
        {**a_booking("eve", DAY, 2 * DAY), "user_email": "eve"},
        *(a_booking(f"many{number}", 5 * DAY, 6 * DAY) for number in range(3)),
    ]
    file = tmp_path / "bookings.json"
    file.write_text("[\n" + ",\n".join(map(json.dumps, bookings)) + "\n]\n")

    refused = admin.types("import", str(file))

    assert refused.code == 2
    assert refused.err.splitlines()[0].endswith("bookings.json has mistakes: nothing was taken over")
    assert refused.err.splitlines()[-1] == f"  Try:  carrel import {file}"
    lines = [line.strip() for line in refused.err.splitlines()[1:-1]]
    assert [line.partition(":")[0] for line in lines] == ["line 3", "line 4", "line 5", "line 8"], lines
    assert "H900" in lines[0] and "cid@lab.example has another booking at that time" in lines[1]
    assert "expected an e-mail address" in lines[2] and f"no {A6000} is left" in lines[3]
    assert Person(service, "cid@lab.example").types("list").out.startswith("You have no booking.")


def test_only_a_lab_admin_may_take_bookings_over_and_a_file_that_is_none_is_refused(
    service: BookingProcess, admin: Person, tmp_path: Path
) -> None:
    file = as_csv(tmp_path / "bookings.csv", [a_booking("fay", -DAY, DAY)])
    refused = Person(service, "fay@lab.example").types("import", file)
    assert refused.code == 7 and "Only a lab admin" in refused.err
    assert admin.types("import", str(tmp_path / "none.csv")).code == 2
    many = as_csv(tmp_path / "many.csv", [a_booking(f"p{number}", -DAY, DAY) for number in range(2001)])
    assert "It has 2,001, and at most 2,000 are taken over at a time" in admin.types("import", many).err
    (tmp_path / "wrong.csv").write_text("user_email,start_date,end_date,gpu\n" + "=cmd(),,,\n" * 100)
    wrong = admin.types("import", str(tmp_path / "wrong.csv")).err.splitlines()
    assert (len(wrong), wrong[-2]) == (53, "  … and 250 more mistakes"), wrong
    (tmp_path / "utf-16.csv").write_text("user_email", encoding="utf-16")
    assert "It is not text in UTF-8." in admin.types("import", str(tmp_path / "utf-16.csv")).err
