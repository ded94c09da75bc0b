"""Error responses after RFC 9457: what happened, why, and what to do, with a code that does not change.

The command line prints the same three lines. A `Problem` is raised where a call fails, and the app turns it into the
response; it never contains a stack trace.
"""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

PROBLEM_JSON = "application/problem+json"


class Problem(Exception):
    """`fields` are for programs, such as `earliest_start`, or `problems`: everything that is wrong at once."""

    def __init__(self, status: int, code: str, title: str, detail: str, hint: str = "", **fields: Any) -> None:
        self.status = status
        self.code = code
        self.title = title
        self.detail = detail
        self.hint = hint
        self.fields = fields
        self.headers: dict[str, str] = {}
        super().__init__(f"{title}: {detail}")

    def with_headers(self, headers: Mapping[str, str]) -> "Problem":
        self.headers.update(headers)
        return self

    def as_data(self) -> dict[str, Any]:
        problem = {"type": f"urn:carrel:{self.code}", "title": self.title, "status": self.status, "detail": self.detail}
        return {**problem, "code": self.code, **({"hint": self.hint} if self.hint else {}), **self.fields}

    def response(self) -> Response:
        return JSONResponse(self.as_data(), self.status, self.headers, media_type=PROBLEM_JSON)


async def answer_problem(request: Request, problem: Exception) -> Response:
    """An exception handler of Starlette and FastAPI, for `Problem`."""
    assert isinstance(problem, Problem)
    return problem.response()
