"""What a check says, and the installation that it looks at."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from carrel.cli.helm_release import HelmRelease
from carrel.configuration.schema import Configuration
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Json, NotFound
from carrel.kubernetes.objects.resources import Resource

PAGE = "docs/doctor.md"
"""Has a heading for each check, with its name."""


class HopState(Enum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    state: HopState
    text: str
    advice: str = ""
    """What to do."""
    hop: str = ""
    """What the finding is about; empty: what the check is about."""
    page: str = ""
    """Of the documents, where it is explained."""


def ok(text: str, hop: str = "") -> Finding:
    return Finding(HopState.OK, text, hop=hop)


def warn(text: str, advice: str, hop: str = "") -> Finding:
    return Finding(HopState.WARN, text, advice, hop)


def fail(text: str, advice: str, hop: str = "") -> Finding:
    return Finding(HopState.FAIL, text, advice, hop)


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """How the two pods are made that say what a container sees."""

    namespace: str = "default"
    """Not Carrel's own: there pods may see every GPU."""
    image: str = ""
    """Empty: the one that Carrel's own pods have."""
    unplaced_s: float = 20.0
    """After so long without a node it is said why, and the pod is removed."""
    wait_s: float = 120.0
    """For each pod that has a node, until it has ended."""
    poll_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Installation:
    """The installation that is looked at."""

    client: Client
    namespace: str
    now: Callable[[], datetime]
    """By the API server's clock."""
    probe: ProbeOptions | None = None
    """None: no pods are made."""
    helm: HelmRelease = field(default_factory=HelmRelease)
    configuration: Configuration = field(default_factory=Configuration)
    """That is in force."""

    async def find(self, kind: Resource[Any], name: str, namespace: str = "") -> Json | None:
        """Return the object, or None if there is none. Raises `ClusterError`."""
        try:
            return await self.client.get(kind, name, namespace)
        except NotFound:
            return None

    @property
    def install(self) -> str:
        return self.helm.upgrade(self.namespace, "--install ")

    def with_values(self, *values: str) -> str:
        return self.helm.with_values(self.namespace, *values)

    def kubectl(self, words: str) -> str:
        return f"kubectl --namespace {self.namespace} {words}"


Look = Callable[[Installation], Awaitable[Sequence[Finding]]]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    look: Look
    limit_s: float = 60.0
    """Longer than that it may not take: the others must have their turn."""

    @property
    def page(self) -> str:
        """Headings are linked in small letters, with a dash for a blank."""
        return f"{PAGE}#{self.name.lower().replace(' ', '-')}"
