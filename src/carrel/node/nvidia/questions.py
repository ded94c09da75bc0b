"""Asks a library that may hang. Each question has a thread of its own, so that one without an answer holds up no other.

A question that has not been answered is not asked again before it is: a driver that hangs costs one thread for each
GPU, not one for each try. The threads do not keep the process from ending.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class DriverSilent(Exception):
    """It has not answered in time. The words never change: a reason that does would be told again and again."""

    def __init__(self) -> None:
        super().__init__("no answer in time")


class Questions(Generic[K, T]):
    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._unanswered: set[K] = set()

    async def ask(self, questions: Mapping[K, Callable[[], T]]) -> dict[K, T | Exception]:
        """Return each answer; what a question raised; or `DriverSilent`."""
        loop, answers = asyncio.get_running_loop(), dict[K, T | Exception]()
        asked: dict[K, asyncio.Future[T | Exception]] = {}
        for key, question in questions.items():
            if key not in self._unanswered:
                asked[key] = loop.create_future()
                threading.Thread(target=self._answer, args=(loop, key, question, asked[key]), daemon=True).start()
                self._unanswered.add(key)
        if asked:
            await asyncio.wait(asked.values(), timeout=self._limit_s)
        for key in questions:
            future = asked.get(key)
            answers[key] = future.result() if future is not None and future.done() else DriverSilent()
        return answers

    def _answer(
        self,
        loop: asyncio.AbstractEventLoop,
        key: K,
        question: Callable[[], T],
        future: "asyncio.Future[T | Exception]",
    ) -> None:
        answer: T | Exception
        try:
            answer = question()
        except Exception as error:
            answer = error

        def deliver() -> None:
            self._unanswered.discard(key)
            if not future.done():
                future.set_result(answer)

        with contextlib.suppress(RuntimeError):  # the process ends
            loop.call_soon_threadsafe(deliver)
