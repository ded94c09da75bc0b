"""What an admin should know about hubs: accounts whose word for whose pod it is is not believed, and users of a hub of
whom no address is known. Pure, from what is written on the pods that exist; when they are gone, so is the finding."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from carrel.dialects.carrel import UNLISTED_SPAWNER, USER
from carrel.dialects.jupyter import is_of_a_hub
from carrel.kubernetes.objects.kinds import Pod

MOST = 20
"""How many of each kind are shown: anybody who may create pods can make up names."""


@dataclass(frozen=True, slots=True)
class HubFindings:
    accounts: tuple[tuple[str, int], ...] = ()
    """Those that are in no `--spawners`, as they must be written there, and how many GPU pods they created."""
    users: tuple[tuple[str, int], ...] = ()
    """Users of whom no address is known, and how many GPU pods they have."""


def hub_findings(pods: Iterable[Pod]) -> HubFindings:
    accounts, users = Counter[str](), Counter[str]()
    for pod in pods:
        notes = pod.metadata.annotations
        if account := notes.get(UNLISTED_SPAWNER, ""):
            accounts[account] += 1
        elif (user := notes.get(USER, "")) and "@" not in user and is_of_a_hub(pod):
            users[user] += 1
    return HubFindings(_most_pods_first(accounts), _most_pods_first(users))


def _most_pods_first(counted: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counted.items(), key=lambda each: (-each[1], each[0]))[:MOST])
