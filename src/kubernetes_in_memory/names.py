"""Where uids, tokens and generated names come from: chance that was passed in, so that a run can be repeated."""

import random
from uuid import UUID

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""What generated names end in: no vowels, so that no word comes out."""
LONGEST_PREFIX = 58


class Names:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def uid(self) -> str:
        return str(UUID(int=self._chance.getrandbits(128), version=4))

    def generated(self, prefix: str) -> str:
        return prefix[:LONGEST_PREFIX] + "".join(self._chance.choices(LETTERS, k=5))

    def token(self) -> str:
        return f"{self._chance.getrandbits(256):064x}"
