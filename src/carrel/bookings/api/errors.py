"""The refusals of the API, as RFC 9457 problems: everything that is wrong at once, and never a stack trace."""

import logging
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from carrel.bookings.api.models import ProblemOut
from carrel.bookings.records import BookingRefusal, RefusalReason, StoreUnavailable
from carrel.http.problems import PROBLEM_JSON, Problem, answer_problem
from carrel.parsing import Malformed
from carrel.parsing.time import seconds

log = logging.getLogger(__name__)

T = TypeVar("T")

MALFORMED = {RefusalReason.NO_ADDRESS: "user", RefusalReason.NO_GROUP_NAME: "group"}
"""The field that cannot be understood."""
ANSWERS = {
    RefusalReason.RULES: (422, ""),
    RefusalReason.LIST: (422, ""),
    RefusalReason.NOT_FOUND: (404, "Not found"),
    RefusalReason.FORBIDDEN: (403, "Not allowed"),
    RefusalReason.CONTRADICTION: (422, "For a person or for a group?"),
    RefusalReason.CHANGED: (412, "Changed meanwhile"),
    RefusalReason.KEY_REUSED: (409, "The key was used already"),
    RefusalReason.NOT_READY: (503, "Not ready"),
}
"""Status and title; broken rules are the title themselves."""
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {"description": what, "content": {PROBLEM_JSON: {"schema": ProblemOut.model_json_schema()}}}
    for status, what in {
        400: "The request cannot be understood.",
        401: "Not signed in.",
        403: "Not allowed.",
        404: "Not found.",
        409: "The idempotency key was used for another request.",
        412: "Changed meanwhile.",
        413: "Too large.",
        422: "Rules are broken; all of them are listed.",
        429: "Too many requests.",
        503: "The store or the cluster does not answer.",
    }.items()
}
"""What any route may answer, for the OpenAPI document."""


def problem_of(refusal: BookingRefusal) -> Problem:
    if refusal.reason in MALFORMED:
        return malformed((MALFORMED[refusal.reason], refusal.message.removesuffix(".")))
    fields: dict[str, Any] = {}
    if refusal.reason is RefusalReason.RULES:
        fields["earliest_start"] = seconds(refusal.earliest_start) if refusal.earliest_start else None
    if refusal.problems:
        fields["problems"] = [{"code": p.rule, "title": p.title, "message": p.message} for p in refusal.problems]
    detail = " ".join(refusal.messages)
    status, title = ANSWERS[refusal.reason]
    return Problem(status, refusal.reason.value, title or refusal.message, detail, refusal.hint, **fields)


def accepted(outcome: T | BookingRefusal) -> T:
    """Raises `Problem` if it was refused."""
    if isinstance(outcome, BookingRefusal):
        raise problem_of(outcome)
    return outcome


def malformed(*items: tuple[str, str]) -> Problem:
    """Each item: the field, and what is expected."""
    problems = [
        {"code": "malformed", "title": "Not understood", "field": _shown(name), "message": _shown(message)}
        for name, message in items
    ]
    detail = " ".join(f"{problem['field']}: {problem['message']}." for problem in problems)
    return Problem(400, "malformed", "The request cannot be understood", detail, problems=problems)


def install_answers(app: FastAPI) -> None:
    app.add_exception_handler(Problem, answer_problem)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(StoreUnavailable, _answer_unavailable)
    app.add_exception_handler(Malformed, _answer_malformed)
    app.add_exception_handler(Exception, _answer_defect)


async def _answer_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return malformed(*((_place(each["loc"]), each["msg"]) for each in error.errors())).response()


async def _answer_malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, Malformed)
    return malformed((error.field, f"{error.expected} is expected")).response()


async def _answer_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "malformed")
    why = "There is no such route, or it does not support this method."
    if code == "malformed":
        why = "The body cannot be read: it is nested too deeply, or a number in it is too long."
    problem = Problem(error.status_code, code, _shown(str(error.detail)), why)
    return problem.with_headers(error.headers or {}).response()


async def _answer_unavailable(_: Request, error: Exception) -> Response:
    log.error("store_unavailable: %s", error)
    why = "The database does not answer. The request may have taken effect: send it again with the same key."
    return Problem(503, "store-unavailable", "Bookings cannot be reached", why, "try again in a minute").response()


async def _answer_defect(request: Request, error: Exception) -> Response:
    log.error("defect method=%s path=%s", request.method, request.url.path, exc_info=error)
    why = "This is a defect of the service; it was logged."
    return Problem(500, "defect", "Internal error", why).response()


def _place(location: tuple[int | str, ...]) -> str:
    inner = location[1:] if location and location[0] in ("body", "query", "path", "header") else location
    return ".".join(map(str, inner)) or "the request"


def _shown(text: str) -> str:
    """A forged name may be long, or contain a lone surrogate, which cannot be sent."""
    return text.removeprefix("Value error, ").encode("utf-8", "replace").decode()[:200]
