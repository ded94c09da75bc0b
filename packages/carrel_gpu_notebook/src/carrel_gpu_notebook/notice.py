"""What the pod was told: one sentence, until when, and where its person can book.

Carrel's webhook mounts a folder into the pods of a hub. Its files are written by the kubelet from annotations of the
pod, and are empty where there is no such annotation:

    notice         one sentence about what the person should know now
    leave-by       when the pod is ended, because its GPU is needed: 2026-11-17T07:22:00Z
    terminate-at   when the booking ends that covers the pod

A file that is not there counts as empty: with the first alone there is no countdown, and without a folder there is
nothing to say.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

FOLDER = "CARREL_NOTICE_FOLDER"
"""For containers in which the folder is mounted elsewhere."""
BOOK_URL, URL = "CARREL_BOOK_URL", "CARREL_URL"
"""Where people book: written by Carrel's spawner; else the address that Carrel's command line uses."""


@dataclass(frozen=True)
class Link:
    label: str
    url: str


@dataclass(frozen=True)
class Notice:
    sentence: str = ""
    """Empty: there is nothing to say."""
    due: datetime | None = None
    """When it happens; None: it has happened, or nobody said."""
    link: Link | None = None

    def seconds_left(self, now: datetime) -> float | None:
        return None if self.due is None else max(0.0, (self.due - now).total_seconds())


def read_notice(environment: Mapping[str, str] = os.environ) -> Notice:
    """Return what is true now. The kubelet replaces the files while the pod runs."""
    folder = Path(environment.get(FOLDER) or "/etc/carrel")
    sentence = _read(folder / "notice")
    if not sentence:
        return Notice()
    ends, leaves = _read(folder / "terminate-at"), _read(folder / "leave-by")
    return Notice(sentence, _instant(leaves or ends), _link(environment, "Book" if leaves or not ends else "Extend"))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError):
        return ""


def _instant(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    # MAIA writes a year before 1901 for "at any time".
    return found if found.tzinfo is not None and found.year > 1900 else None


def _link(environment: Mapping[str, str], label: str) -> Link | None:
    base = environment.get(URL, "").rstrip("/")
    url = environment.get(BOOK_URL) or (f"{base}/timeline" if base else "")
    return Link(label, url) if url.startswith(("https://", "http://")) else None
