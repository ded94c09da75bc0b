"""A transport that answers from a script and keeps what it was asked."""

import json
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from carrel.kubernetes.transport import ApiRequest, ApiResponse

Answer = ApiResponse | Exception


class Scripted:
    """Answers in order; the last answer is repeated."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[ApiRequest] = []

    async def send(self, request: ApiRequest) -> ApiResponse:
        self.asked.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self) -> None:
        pass


class Answering:
    """Answers by a function of the request."""

    def __init__(self, answer: Callable[[ApiRequest], ApiResponse]) -> None:
        self._answer = answer
        self.asked: list[ApiRequest] = []

    async def send(self, request: ApiRequest) -> ApiResponse:
        self.asked.append(request)
        return self._answer(request)

    async def aclose(self) -> None:
        pass


def said(document: Any, status: int = 200) -> ApiResponse:
    return ApiResponse(status, json.dumps(document).encode(), {"content-type": "application/json"})


def refused(code: int, reason: str = "", details: dict[str, Any] | None = None, retry_after: str = "") -> ApiResponse:
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "no",
        "reason": reason,
        "code": code,
    }
    if details:
        status["details"] = details
    headers = {"content-type": "application/json"}
    if retry_after:
        headers["retry-after"] = retry_after
    return ApiResponse(code, json.dumps(status).encode(), headers)


def streamed(chunks: Iterable[bytes]) -> ApiResponse:
    async def stream() -> AsyncGenerator[bytes, None]:
        for chunk in chunks:
            yield chunk

    return ApiResponse(200, stream=stream())
