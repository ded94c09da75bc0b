"""RFC 9457: how every HTTP door says no. What happened, why, and what to do, with a code that does not change.

The command line prints the same three lines. A problem is raised where an answer cannot be given, and is answered by
whoever serves; it never carries a stack trace.
"""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

PROBLEM_JSON = "application/problem+json"


class Problem(Exception):
    """`fields` are for programs, such as `earliest_start`; `problems` are all that is wrong, if several things are."""

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
        said = {"type": f"urn:carrel:{self.code}", "title": self.title, "status": self.status, "detail": self.detail}
        return {**said, "code": self.code, **({"hint": self.hint} if self.hint else {}), **self.fields}

    def response(self) -> Response:
        return JSONResponse(self.as_data(), self.status, self.headers, media_type=PROBLEM_JSON)


async def answer_problem(request: Request, problem: Exception) -> Response:
    """An exception handler of Starlette and FastAPI, for `Problem`."""
    assert isinstance(problem, Problem)
    return problem.response()
