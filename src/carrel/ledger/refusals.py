"""How a decision says no: as a value, in words a person can act on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A "no" with its reason: what, where, how much and what is missing, in one line.

    The details have a line for each GPU, node or rule that was looked at.
    """

    reason: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join((self.reason, *(f"  {line}" for line in self.details)))
