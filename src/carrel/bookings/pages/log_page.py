"""The audit log: by person, action and time; as a page and as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from carrel.bookings.pages import forms
from carrel.bookings.pages.forms import InvalidForm
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.people import Person
from carrel.bookings.records import LogEntry, LogQuery
from carrel.bookings.sign_in.authenticator import CurrentPerson, forbidden
from carrel.parsing.addresses import normal
from carrel.parsing.printable import spreadsheet_text
from carrel.parsing.time import seconds

ON_A_PAGE = 100
IN_A_TABLE = 10_000
FIELDS = ("person", "action", "start", "end")


class LogPage(Page):
    def routes(self) -> Mapping[str, Handler]:
        return {
            "GET /admin/log": self.show,
            "GET /admin/log.csv": self.table,
        }

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        _check_admin(person)
        asked = self._asked(request)
        values: dict[str, Any] = {"asked": asked, "actions": await self._queries.actions(), "problems": ()}
        try:
            query = self._query(asked, ON_A_PAGE, request.query_params.get("before", ""))
        except InvalidForm as invalid:
            values["problems"] = invalid.problems
            return self._renderer.page(request, person, "log.html", status=422, log=(), **values)
        log = await self._queries.log(person, query)
        same = {name: value for name, value in asked.items() if value}
        older = urlencode({**same, "before": log[-1].number}) if len(log) == ON_A_PAGE else ""
        return self._renderer.page(request, person, "log.html", log=log, older=older, same=urlencode(same), **values)

    async def table(self, request: Request, person: CurrentPerson) -> Response:
        _check_admin(person)
        try:
            log = await self._queries.log(person, self._query(self._asked(request), IN_A_TABLE))
        except InvalidForm as invalid:
            return Response(f"{invalid}\n", 422, media_type="text/plain; charset=utf-8")
        headers = {"content-disposition": 'attachment; filename="carrel-log.csv"'}
        return Response(as_csv(log), media_type="text/csv; charset=utf-8", headers=headers)

    def _asked(self, request: Request) -> dict[str, str]:
        given = forms.texts(request.query_params)
        return {name: given.get(name, "") for name in FIELDS}

    def _query(self, asked: Mapping[str, str], limit: int, before: str = "") -> LogQuery:
        """Raises `InvalidForm`."""
        start, end = (
            forms.local_instant(asked[name], self._queries.zone) if asked[name] else None for name in ("start", "end")
        )
        last = int(before) if before.isascii() and before.isdigit() and len(before) < 19 else 0
        return LogQuery("", normal(asked["person"]), asked["action"], start, end, last, limit)


def as_csv(entries: Iterable[LogEntry]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(["number", "time", "by", "action", "for", "booking", "reason", "details"])
    for each in entries:
        details = ", ".join(f"{name}={value}" for name, value in each.details.items())
        cells = [each.actor, each.action, each.subject, each.booking, each.why, details]
        writer.writerow([each.number, seconds(each.at), *map(spreadsheet_text, cells)])
    return text.getvalue()


def _check_admin(person: Person) -> None:
    if not person.is_lab_admin:
        raise forbidden("This page is for lab admins", "You are signed in as a member.")
