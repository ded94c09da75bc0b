"""`carrel group list|add|remove`, `carrel person remove` and `carrel log`: who is in the lab, and who did what."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from carrel.cli.booking_client import asking
from carrel.cli.booking_text import Json, gpus_text
from carrel.cli.dates import date_text, parse_date
from carrel.cli.options import BookingOutputSettings, ListFormat
from carrel.cli.output import Column, is_confirmed, print_lines, print_list, rows_of
from carrel.command_errors import USAGE, command_failed
from carrel.option_fields import argument, option
from carrel.parsing.time import seconds

ADD_EXAMPLE = "carrel group add course --file people.txt"


@dataclass(frozen=True)
class GroupListSettings(BookingOutputSettings):
    group: str = argument("", "Only this group.")


def list_groups(settings: GroupListSettings) -> None:
    """List who is in your groups; as a lab admin, in all.

    Examples:

      carrel group list

      carrel group list course -o csv
    """
    with asking(settings) as client:
        found = client.call("GET", "/groups").body["items"]
    groups = [each for each in found if settings.group in ("", each["name"])]
    items = [{"group": group["name"], **person} for group in groups for person in group["people"]]
    if not items and settings.output is ListFormat.TABLE:
        typer.echo(f"There is no such group, or you are not in it.\nTry:  {ADD_EXAMPLE}")
        return
    columns: list[Column] = [
        ("GROUP", True, lambda item: item["group"]),
        ("PERSON", True, lambda item: item["email"]),
        ("ROLE", True, lambda item: item["role"]),
        ("FROM", True, lambda item: "this list" if item["listed"] else "sign-in"),
    ]
    print_list(items, settings.output, rows_of(items, columns))


@dataclass(frozen=True, kw_only=True)
class GroupRemoveSettings(BookingOutputSettings):
    group: Annotated[str, typer.Argument(help="Name of the group.")]
    people: Annotated[list[str] | None, typer.Argument(help="E-mail addresses.")] = None
    file: str = option("", "File with addresses, one in each line; - for standard input.", "--file", "-f")
    reason: str = option("", "Why, for the log.")


@dataclass(frozen=True, kw_only=True)
class GroupAddSettings(GroupRemoveSettings):
    manager: bool = option(False, "As managers, who book for the group.", "--manager")


def add_people(settings: GroupAddSettings) -> None:
    """Put people into a group; the first one makes it. All of the list or, if anything is wrong with it, nobody.

    Who is in the group already is no mistake.

    Examples:

      carrel group add course ada@lab.org bob@lab.org

      carrel group add course --file people.txt

      carrel group add course eva@lab.org --manager
    """
    _change_list(settings, "manager" if settings.manager else "member", "added", ADD_EXAMPLE)


def remove_people(settings: GroupRemoveSettings) -> None:
    """Take people off the list of a group. Who is not on it is no mistake.

    Examples:

      carrel group remove course ada@lab.org

      carrel group remove course --file people.txt
    """
    _change_list(settings, None, "taken off the list", "carrel group remove course ada@lab.org")


def _change_list(settings: GroupRemoveSettings, role: str | None, done: str, example: str) -> None:

    if bool(settings.people) == bool(settings.file):
        raise command_failed("Who?", "Give addresses or --file.", example, USAGE)
    lines = list(settings.people or ())
    if settings.file:
        try:
            text = sys.stdin.read() if settings.file == "-" else Path(settings.file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", "") or "It is not text in UTF-8."
            raise command_failed(f"{settings.file} cannot be read", why, example, USAGE) from None
        lines = text.splitlines()

    with asking(settings) as client:
        body = {"people": lines, "role": role, "reason": settings.reason}
        answer = client.call("POST", f"/groups/{settings.group}/people", json=body).body
    if settings.output is ListFormat.TABLE:
        count = len(answer["changed"])
        print_lines(f"✓ {settings.group}: {count} {done}, {answer['unchanged']} were as they should be already")
        for email in answer.get("stay_managers", ()):
            remove = f"carrel group remove {shlex.quote(settings.group)} {email}"
            print_lines(f"{email} is a manager and stays one; to change that, first: {remove}")
    else:
        print_list(answer, settings.output, [])


@dataclass(frozen=True, kw_only=True)
class PersonRemoveSettings(BookingOutputSettings):
    email: Annotated[str, typer.Argument(help="E-mail address of the person.")]
    reason: str = option("", "Why; they are shown it.")
    yes: bool = option(False, "Do not ask for confirmation.", "--yes", "-y")
    dry_run: bool = option(False, "Only show what would end; change nothing.", "--dry-run")


def remove_person(settings: PersonRemoveSettings) -> None:
    """End what a person has here: bookings, sessions, tokens, places in groups, role. It shows all of it, and asks.

    Needs the role platform-admin.

    Examples:

      carrel person remove ada@lab.org --dry-run

      carrel person remove ada@lab.org --reason "left the lab"
    """

    without_asking = shlex.join(["carrel", "person", "remove", settings.email, "--reason", settings.reason, "--yes"])
    if not settings.reason and not settings.dry_run:
        why = "Give --reason: the person is shown it, and the log keeps it."
        raise command_failed("Why?", why, f'carrel person remove {settings.email} --reason "left the lab"', USAGE)
    path = f"/people/{settings.email}/removal"

    with asking(settings) as client:
        has, zone = client.call("GET", path).body, client.zone()
    is_table = settings.output is ListFormat.TABLE
    lines = [f"Removing {has['email']}", *(f"  ends:     {each}" for each in has["ends"] or ["nothing"])]
    for each in has["bookings"]:
        lines.append(f"  booking:  {each['model']}, {gpus_text(each)}, until {date_text(each['ends'], zone)}")
    lines += [f"  stays:    a booking of {each['model']} for {each['group']}" for each in has["group_bookings"]]
    lines += [f"  stays:    the role {each}, which the configuration gives" for each in has["configured_roles"]]
    lines += [f"  runs on:  the pod {each}, without a booking; {_delete(each)}" for each in has["pods"]]
    if is_table or not settings.yes:
        print_lines(*lines, err=not is_table)
    if settings.dry_run:
        if not is_table:
            print_list(has, settings.output, [])
        return
    if not settings.yes and not is_confirmed("Remove this person?", "Not removed", without_asking):
        return
    with asking(settings) as client:
        done = client.call("POST", path, json={"reason": settings.reason}).body
    if is_table:
        print_lines(f"✓ Removed: {done['email']}. Ended: {', '.join(done['ends']) or 'nothing, they had nothing here'}")
    else:
        print_list(done, settings.output, [])


def _delete(pod: str) -> str:
    """What ends a pod."""
    namespace, _, name = pod.partition("/")
    return f"to end it: kubectl delete pod {name} -n {namespace}"


@dataclass(frozen=True)
class LogSettings(BookingOutputSettings):
    person: str = option("", "By or for this person; me: you.")
    action: str = option("", "Only this action, such as booked or cancelled.")
    since: str = option("", "First instant: 2026-12-01 or 2026-12-01T09:00.")
    until: str = option("", "End.")
    limit: int = option(100, "Number of entries, at most.", min=1, max=10_000)


def log(settings: LogSettings) -> None:
    """Show who did what, when, to whose booking, and why; newest first. Lab admins see everything.

    Examples:

      carrel log --person ada@lab.org

      carrel log --action cancelled --since 2026-12-01 -o csv
    """

    with asking(settings, "carrel log --since 2026-12-01") as client:
        zone = client.zone()
        params: Json = {"user": settings.person, "action": settings.action}
        times = (("start", settings.since), ("end", settings.until))
        params |= {name: seconds(parse_date(value, zone, is_past=True)) for name, value in times if value}
        params = {name: value for name, value in params.items() if value}
        found: list[Json] = []
        before = 0
        while len(found) < settings.limit:
            size = min(settings.limit - len(found), 500)
            page = client.call("GET", "/audit", params={**params, "limit": size, "before": before}).body
            found += page["items"]
            before = page["next_before"] or 0
            if not before:
                break
    if not found and settings.output is ListFormat.TABLE:
        typer.echo("Nothing in the log matches, or you may not see it.\nTry:  carrel log")
        return
    columns: list[Column] = [
        ("TIME", True, lambda item: date_text(item["at"], zone)),
        ("BY", True, lambda item: item["actor"]),
        ("ACTION", True, lambda item: item["action"]),
        ("FOR", True, lambda item: item["subject"] if item["subject"] != item["actor"] else ""),
        ("WHY", True, lambda item: item["why"]),
        ("DETAILS", True, lambda item: ", ".join(f"{name} {value}" for name, value in item["details"].items())),
    ]
    print_list(found, settings.output, rows_of(found, columns))
