"""Admission webhooks: asked before a write is stored, first those that change the object, then those that judge it."""

from dataclasses import dataclass
from typing import Any

from carrel.adapters.memory.calls import Call

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Review:
    operation: str
    call: Call
    tree: Json | None
    live: Json | None


class Admission:
    async def mutate(self, review: Review) -> Any:
        return review.tree

    async def validate(self, review: Review) -> None:
        return None

    async def validate_deletion(self, call: Call, live: Any) -> None:
        return None
