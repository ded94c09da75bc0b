"""`carrel login|free|book|list|show|extend|cancel|usage` against a real `carrel booking`, as people type them."""

import csv
import io
import json
import os
import re
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from typer.testing import CliRunner

from carrel.__main__ import app
from carrel.parsing.time import moment
from tests.kit.booking_service import BookingProcess, booking_process


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingProcess]:
    with booking_process(tmp_path_factory.mktemp("booking")) as service:
        yield service


@dataclass
class Result:
    code: int
    out: str
    err: str


class Person:
    def __init__(self, service: BookingProcess, email: str, role: str = "member") -> None:
        self.email = email
        self.env = {"CARREL_URL": service.url, "CARREL_TOKEN": service.token(email, role)}

    def types(self, *words: str) -> Result:
        done = CliRunner().invoke(app, words, env=self.env, prog_name="carrel")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Result(done.exit_code, done.stdout, done.stderr)


def test_a_person_books_extends_and_cancels(service: BookingProcess) -> None:
    ada = Person(service, "ada@lab.example")

    assert "NVIDIA-RTX-A6000       2 of 2         now" in ada.types("free").out
    tried = ada.types("book", "a6000", "--days", "5", "--dry-run")
    assert (tried.code, tried.out.splitlines()[0][:19]) == (0, "✓ You can book this")
    assert ada.types("list").out.startswith("You have no booking.")

    made = json.loads(ada.types("book", "a6000", "--days", "5", "--note", "ablation", "-o", "json").out)
    assert (made["user"], made["model"], made["state"]) == ("ada@lab.example", "NVIDIA-RTX-A6000", "active")
    assert "1 of 2" in ada.types("free", "a6000").out
    assert f"\n{made['id'][:8]}  " in ada.types("list").out
    assert "ablation" in ada.types("show").out

    longer = ada.types("extend", "--days", "2")
    assert "(7 d)" in longer.out
    shorter = ada.types("extend", made["id"][:8], "--days", "-1", "--dry-run")
    assert "(6 d)" in shorter.out
    assert "(7 d)" in ada.types("show").out, "a dry run changes nothing"

    assert "starts the cooldown of 14 d today" in ada.types("cancel", "--dry-run").out
    assert ada.types("cancel", "--yes").out.count("✓ Cancelled") == 1
    assert ada.types("show", made["id"][:6], "-o", "json").out.count('"cancelled"') == 1
    assert "2 of 2" in ada.types("free", "a6000").out


def test_a_person_says_how_many_gpus(service: BookingProcess) -> None:
    tried = Person(service, "gil@lab.example").types("book", "a6000", "--gpus", "2", "--days", "1", "--dry-run")

    assert (tried.code, "NVIDIA-RTX-A6000, 2 GPUs," in tried.out) == (0, True), tried


def test_a_broken_rule_is_reported_in_three_lines_with_a_command_that_works(service: BookingProcess) -> None:
    ben = Person(service, "ben@lab.example")

    refused = ben.types("book", "a6000", "--days", "20")

    assert (refused.code, refused.out) == (3, "")
    assert refused.err == (
        "✗ Too long\n  A booking lasts at most 14 d; this is 20 d.\n  Try:  carrel book nvidia-rtx-a6000 --days 14\n"
    )
    tried = refused.err.splitlines()[-1].removeprefix("  Try:  carrel ").split()
    assert ben.types(*tried, "--dry-run").code == 0


def test_a_manager_books_for_a_group_and_its_members_see_it(service: BookingProcess) -> None:
    uma, vic = Person(service, "uma@lab.example"), Person(service, "vic@lab.example")
    list_in_group(service, "vision", "uma@lab.example", "manager")
    list_in_group(service, "vision", "vic@lab.example", "member")

    made = uma.types("book", "a100", "--days", "2", "--gpus", "2", "--group", "vision")
    assert (made.code, "  group:     vision" in made.out) == (0, True), made
    id = made.out.split("id:")[1].split()[0]

    listed = vic.types("list")
    assert [line.split()[:2] for line in listed.out.splitlines()] == [["ID", "GROUP"], [id, "vision"]]
    assert id in vic.types("list", "--group", "vision", "--state", "active").out
    assert "There is no booking that matches." in vic.types("list", "--group", "nlp").out
    assert "group:     vision" in vic.types("show", id).out
    booked = uma.types("usage", "--since", "2020-01-01", "--until", "2100-01-01")  # it began in this very second
    assert [line.split()[:2] for line in booked.out.splitlines()] == [
        ["USER", "GROUP"],
        ["uma@lab.example", "vision"],
    ]
    assert vic.types("show").code == 4, "without an id it means a person's own booking"
    refused = vic.types("cancel", id, "--yes")
    assert refused.code == 7
    assert refused.err == (
        "✗ Not allowed\n  You are a member of the group “vision”, but only its managers book, change and cancel;"
        " a lab admin names them.\n  Try:  ask a lab admin\n"
    )
    assert vic.types("book", "a100", "--days", "1", "--group", "vision").code == 7
    assert uma.types("cancel", id, "--yes").code == 0


def list_in_group(service: BookingProcess, group: str, email: str, role: str) -> None:
    as_admin(service, "PUT", f"/groups/{group}/people/{email}", {"role": role})


def as_admin(service: BookingProcess, method: str, path: str, body: object = None) -> Any:
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {service.token('root@lab.example', 'lab-admin')}",
    }
    asked = urllib.request.Request(f"{service.url}/api/v1{path}", json.dumps(body).encode(), headers, method=method)
    return json.loads(urllib.request.urlopen(asked, timeout=60).read() or "null")


def test_what_is_free_until_a_maintenance_only_is_shown_as_such(service: BookingProcess) -> None:
    begins = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=20)
    ends = begins + timedelta(hours=8)
    window = {"model": "a100", "start": begins.isoformat(), "end": ends.isoformat(), "gpus": 8, "why": "new fans"}
    kept = as_admin(service, "POST", "/maintenance", window)
    try:
        kim, zone = Person(service, "kim@lab.example"), ZoneInfo("Europe/Stockholm")
        told = kim.types("free", "a100")
        assert "0 of 8" in told.out
        assert re.search(r"FROM +FREE NOW", told.out)
        assert f"{moment(ends, zone)}" in told.out
        assert f"until {moment(begins, zone)} (maintenance)" in told.out
        refused = kim.types("book", "a100", "--days", "2")
        assert (refused.code, "8 GPUs by maintenance (new fans)" in refused.err) == (3, True), refused
        tried = refused.err.splitlines()[-1].removeprefix("  Try:  carrel ").split()
        assert kim.types(*tried, "--dry-run").code == 0
    finally:
        as_admin(service, "DELETE", f"/maintenance/{kept['id']}")
    assert "FREE NOW" not in kim.types("free", "a100").out


def test_all_broken_rules_are_reported_at_once(service: BookingProcess) -> None:
    refused = Person(service, "ida@lab.example").types("book", "a6000", "--days", "20", "--from", "2020-01-01")

    assert refused.code == 3
    assert refused.err.startswith("✗ 2 rules are broken\n")
    assert "at most 14 d" in refused.err
    assert "has passed" in refused.err


ERRORS = {
    "an unknown booking": (["show", "nowhere"], 4, "Not found"),
    "nothing to cancel": (["cancel"], 4, "Nothing to cancel"),
    "an unknown model": (["free", "h9000"], 4, "Not found"),
    "book without an end": (["book", "a6000"], 2, "Until when?"),
    "book with two ends": (["book", "a6000", "--days", "1", "--until", "2030-01-01"], 2, "Until when?"),
    "extend with two ends": (["extend", "--days", "1", "--until", "2030-01-01"], 2, "either --days or --until"),
    "an unknown state": (["list", "--state", "over"], 2, "state.0: Input should be 'planned'"),
    "an invalid day": (["usage", "--since", "soon"], 2, "Try:  carrel usage --since"),
    "an invalid start": (["book", "a6000", "--days", "1", "--from", "soon"], 2, "Invalid date"),
    "a skipped hour": (
        ["book", "a6000", "--days", "1", "--from", "2027-03-28T02:30"],
        2,
        "does not exist",
    ),
    "an hour that exists twice": (["book", "a6000", "--days", "1", "--from", "2027-10-31T02:30"], 2, "exists twice"),
    "for another person": (
        ["book", "a6000", "--days", "1", "--for", "x@lab.example"],
        7,
        "Not allowed",
    ),
}


@pytest.mark.parametrize(("words", "code", "what"), ERRORS.values(), ids=ERRORS)
def test_an_error_has_an_exit_code_and_a_hint(service: BookingProcess, words: list[str], code: int, what: str) -> None:
    said = Person(service, "kim@lab.example").types(*words)

    assert said.code == code, said
    assert what in said.err
    assert "\n  Try:  " in said.err


def test_an_empty_list_says_whether_a_filter_was_given(service: BookingProcess) -> None:
    kim = Person(service, "kim@lab.example")

    assert kim.types("list").out.startswith("You have no booking.\n")
    assert kim.types("list", "--model", "h9000").out.startswith("You have no booking that matches.\n")


def test_booking_for_another_person_needs_a_reason_that_they_see(service: BookingProcess) -> None:
    admin, eva = Person(service, "boss@lab.example", "lab-admin"), Person(service, "eva@lab.example")
    wanted = ("book", "a100", "--days", "1", "--from", "2030-01-07", "--for", "eva@lab.example")

    assert admin.types(*wanted).code == 7
    assert admin.types(*wanted, "--reason", "she asked me to").code == 0
    shown = eva.types("show").out
    assert "made by:   boss@lab.example" in shown
    assert "reason:    she asked me to" in shown
    assert "Mon 07 Jan 2030 00:00 CET" in shown


def test_lists_have_formats_for_programs(service: BookingProcess) -> None:
    zoe = Person(service, "zoe@lab.example")
    zoe.types("book", "a100", "--days", "2", "--from", "2030-03-01", "--note", "=1+1")

    (as_json,) = json.loads(zoe.types("list", "-o", "json").out)
    (as_yaml,) = yaml.safe_load(zoe.types("list", "-o", "yaml").out)
    columns = zoe.types("list", "-o", "csv").out.splitlines()[0].split(",")
    assert columns[:7] == ["id", "user", "model", "start", "end", "gpus", "share"]
    (as_csv,) = csv.DictReader(io.StringIO(zoe.types("list", "-o", "csv").out))
    assert as_json == as_yaml
    assert (as_csv["id"], as_csv["share"], as_csv["start"]) == (as_json["id"], "false", "2030-02-28T23:00:00Z")
    assert as_csv["note"] == "'=1+1", "a spreadsheet does not run it"
    assert json.loads(zoe.types("list", "-A", "--search", "zoe@", "-o", "json").out) == [as_json]


def test_a_member_sees_their_own_usage_and_an_admin_sees_all(service: BookingProcess) -> None:
    uma, admin = Person(service, "uma@lab.example"), Person(service, "boss@lab.example", "lab-admin")
    uma.types("book", "a100", "--days", "1", "--from", "2030-05-06")
    span = ("--since", "2030-05-01", "--until", "2030-06-01", "-o", "json")

    (mine,) = json.loads(uma.types("usage", *span).out)
    expected = {
        "user": "uma@lab.example",
        "model": "NVIDIA-A100-SXM4-80GB",
        "bookings": 1,
        "gpu_hours": 24.0,
    }
    assert mine.items() >= expected.items()
    assert mine in json.loads(admin.types("usage", *span).out)


def test_cancelling_without_a_terminal_needs_yes(service: BookingProcess) -> None:
    leo = Person(service, "leo@lab.example")
    leo.types("book", "a100", "--days", "1", "--from", "2030-08-05")

    said = leo.types("cancel")

    assert said.code == 2
    assert re.search(r"Try:  carrel cancel [0-9a-f]+ --yes", said.err)
    assert json.loads(leo.types("show", "-o", "json").out)["state"] == "planned"


def test_a_bad_token_and_no_service_have_their_own_exit_codes(service: BookingProcess) -> None:
    def types(**env: str) -> Result:
        done = CliRunner().invoke(app, ["list"], env=env, prog_name="carrel")
        return Result(done.exit_code, done.stdout, done.stderr)

    assert types(CARREL_URL=service.url, CARREL_TOKEN="carrel_forged").code == 7
    assert types(CARREL_URL="http://127.0.0.1:1", CARREL_TOKEN="x").code == 6
    plain = types(CARREL_URL="http://gpus.lab.example", CARREL_TOKEN="x")
    assert (plain.code, "Without TLS" in plain.err) == (2, True)


def test_a_booking_is_named_by_the_beginning_of_its_id(service: BookingProcess) -> None:
    ola = Person(service, "ola@lab.example")
    id = json.loads(ola.types("book", "a100", "--days", "1", "--from", "+60d", "-o", "json").out)["id"]

    for given in (id[:4], id[:8], id):
        assert json.loads(ola.types("show", given, "-o", "json").out)["id"] == id
    short = ola.types("show", id[:3])
    assert (short.code, f"Try:  carrel show {id[:8]}" in short.err) == (2, True), short
    for wrong in (id[:8] + "x", "%", "a b/../c", "?"):
        assert ola.types("show", wrong).code == 4
    assert f"Try:  carrel cancel {id[:8]} --yes" in ola.types("cancel", id[:8]).err
    admin = Person(service, "boss@lab.example", "lab-admin")
    with_reason = admin.types("cancel", id[:8], "--reason", "the fan's broken").err
    assert f"Try:  carrel cancel {id[:8]} --reason 'the fan'\"'\"'s broken' --yes" in with_reason, with_reason
    assert ola.types("cancel", id[:8], "--yes").code == 0


SHELLS = {
    "bash": ({"COMP_WORDS": "carrel {words}", "COMP_CWORD": "{count}"}, "{value}"),
    "zsh": ({"_TYPER_COMPLETE_ARGS": "carrel {words}"}, '"{value}"'),
    "fish": ({"_TYPER_COMPLETE_ARGS": "carrel {words}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "{value}"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_completes_commands_models_and_bookings(service: BookingProcess, shell: str) -> None:
    kai = Person(service, "kai@lab.example")
    id = json.loads(kai.types("book", "a100", "--days", "1", "--from", "+90d", "-o", "json").out)["id"]
    variables, written = SHELLS[shell]

    def completed(words: str, **env: str) -> str:
        told = {name: value.format(words=words, count=len(words.split(" "))) for name, value in variables.items()}
        here = {**told, "_CARREL_COMPLETE": f"complete_{shell}", **kai.env, **env}
        return CliRunner().invoke(app, [], env=here, prog_name="carrel").stdout

    for words, value in (("bo", "book"), ("book NVIDIA-A", "NVIDIA-A100-SXM4-80GB"), (f"show {id[:2]}", id[:8])):
        assert written.format(value=value) in completed(words)
    for away in ({"CARREL_URL": "http://127.0.0.1:9"}, {"CARREL_TOKEN": "none"}, {"CARREL_URL": "http://192.0.2.1"}):
        assert completed("book NVIDIA-A", **away).strip() in ("", "_files")
    kai.types("cancel", "--yes")


LOGGED_OUT = {"CARREL_URL": "", "CARREL_TOKEN": "", "JUPYTERHUB_API_TOKEN": "", "SSH_CONNECTION": ""}


def test_login_with_a_browser_saves_a_token_that_only_its_owner_may_read(
    service: BookingProcess, tmp_path: Path
) -> None:
    env = {**os.environ, **LOGGED_OUT, "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "carrel", "login", service.url.removeprefix("http://")]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as login:
        assert login.stderr is not None
        address = next(line.strip() for line in login.stderr if "/cli-login?" in line)
        browser = service.browser("mia@lab.example")
        assert "logged in" in browser.open(service.allow(browser, address))
        out, _ = login.communicate(timeout=60)
        assert login.returncode == 0
    assert "as mia@lab.example" in out
    file = tmp_path / "carrel" / "login.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    token = json.loads(file.read_text())["token"]
    alone = {"XDG_CONFIG_HOME": str(tmp_path), **LOGGED_OUT}
    assert CliRunner().invoke(app, ["list"], env=alone).exit_code == 0
    assert "Logged out" in CliRunner().invoke(app, ["login", "--forget"], env=alone).stdout
    assert not file.exists()
    stolen = {**alone, "CARREL_URL": service.url, "CARREL_TOKEN": token}
    assert CliRunner().invoke(app, ["list"], env=stolen).exit_code == 7, "it was revoked, not only deleted"


@pytest.mark.parametrize("how", ["--no-browser", "over SSH"])
def test_login_with_a_browser_elsewhere_asks_for_the_code_of_its_page(
    service: BookingProcess, tmp_path: Path, how: str
) -> None:
    ssh = {"SSH_CONNECTION": "192.0.2.1 50000 192.0.2.2 22" * (how == "over SSH")}
    env = {**os.environ, **LOGGED_OUT, **ssh, "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "carrel", "login", service.url, *[how] * (how != "over SSH")]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=env, text=True, **pipes) as login:
        assert login.stderr is not None
        address = next(line.strip() for line in login.stderr if "/cli-login?" in line)
        browser = service.browser("mia@lab.example")
        asked = browser.open(address)
        assert "on another computer" in asked
        form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', asked))
        page = browser.open(f"{service.url}/cli-login", form)
        assert "Give it to nobody" in page
        (code,) = re.findall(r"<p><code>([\w-]+)</code></p>", page)
        out, err = login.communicate(f"{code}\n", timeout=60)
    assert (login.returncode, "as mia@lab.example" in out) == (0, True), err
    assert CliRunner().invoke(app, ["list"], env={"XDG_CONFIG_HOME": str(tmp_path), **LOGGED_OUT}).exit_code == 0


def test_a_code_works_once_and_only_where_the_login_began(service: BookingProcess, tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), **LOGGED_OUT}
    for typed, code in (("stolen\n", 7), ("\n", 2), ("", 2)):
        words = ["login", service.url, "--no-browser"]
        done = CliRunner().invoke(app, words, env=env, input=typed, prog_name="carrel")
        assert (done.exit_code, "\n  Try:  carrel login" in done.stderr) == (code, True), done.stderr


NO_SERVICE: dict[str, tuple[Any, ...]] = {
    "a name that nobody has": ("https://gpus.invalid", 6, "no machine of this name"),
    "a port where nothing listens": ("http://127.0.0.1:9", 6, "Nothing listens there."),
    "no TLS": ("https://{host}", 6, "It does not speak TLS", "Try:  carrel login http://{host}"),
    "a wrong path": ("http://{host}/timeline/x", 4, "Carrel is at http://{host}.", "Try:  carrel login http://{host}"),
    "not a URL": ("http://[::1", 2, "is not the URL of a service"),
    "another port": ("http://127.0.0.1:x", 2, "is not the URL of a service"),
    "no TLS to another machine": ("http://gpus.lab.example", 2, "Try:  carrel login https://gpus.lab.example"),
}


@pytest.mark.parametrize("case", NO_SERVICE)
def test_login_says_why_there_is_no_booking_service(service: BookingProcess, tmp_path: Path, case: str) -> None:
    address, code, *said = NO_SERVICE[case]
    host = service.url.removeprefix("http://")
    env = {"XDG_CONFIG_HOME": str(tmp_path), **LOGGED_OUT}
    done = CliRunner().invoke(app, ["login", address.format(host=host)], env=env, prog_name="carrel")

    assert done.exit_code == code, done.stderr
    assert [each for each in said if each.format(host=host) not in done.stderr] == [], done.stderr


def test_login_can_save_a_given_token(service: BookingProcess, tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), "CARREL_TOKEN": service.token("pia@lab.example"), "CARREL_URL": ""}

    assert "as pia@lab.example" in CliRunner().invoke(app, ["login", service.url], env=env).stdout
    assert CliRunner().invoke(app, ["free"], env={**env, "CARREL_TOKEN": ""}).exit_code == 0
