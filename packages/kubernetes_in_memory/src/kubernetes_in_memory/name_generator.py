"""Makes uids, tokens and generated names from a random generator that is passed in, so that a run can be repeated."""

import random
from uuid import UUID

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""The characters of generated suffixes: no vowels, so that they form no words."""
LONGEST_PREFIX = 58


class NameGenerator:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def uid(self) -> str:
        return str(UUID(int=self._chance.getrandbits(128), version=4))

    def generated(self, prefix: str) -> str:
        return prefix[:LONGEST_PREFIX] + "".join(self._chance.choices(LETTERS, k=5))

    def token(self) -> str:
        return f"{self._chance.getrandbits(256):064x}"
