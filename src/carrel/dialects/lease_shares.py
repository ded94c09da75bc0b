"""The shares on the Lease of a GPU, as JSON.

    {"<uid>": {"pod": "lab/train", "mib": 8138, "state": "assigned", "tries": […],
               "booking": "<id>", "covered": "2026-…Z"}}

A Lease may have dozens of them, and mostly one of them is new: the others are neither written nor read again.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from carrel.ledger.gpus import MiB
from carrel.ledger.shares import Coverage, Holder, HolderKind, Share, ShareState
from carrel.parsing import Malformed
from carrel.parsing.fields import Field
from carrel.parsing.time import instant, micro_seconds
from carrel.parsing.validation import malformed

Tries = Mapping[str, tuple[str, ...]]
"""uid → the marks of the binds that rely on its share."""

SomeText = Annotated[str, msgspec.Meta(min_length=1)]
_STATES = {state.value: state for state in ShareState if state is not ShareState.GONE}


# --- writing ---------------------------------------------------------------------------------------------------------


class WrittenShare(NamedTuple):
    share: Share
    marks: tuple[str, ...]
    text: str
    """The JSON of both."""


def write_shares(shares: Sequence[Share], tries: Tries, written: dict[str, WrittenShare]) -> str:
    """`written` has what was written before, and is told what is written now."""
    texts = []
    for share in shares:
        uid = share.holder.uid
        marks, last = tries.get(uid, ()), written.get(uid)
        if last is None or last.share is not share or last.marks is not marks:
            text = f"{to_json(uid)}:{to_json(_entry(share, marks))}"
            last = written[uid] = WrittenShare(share, marks, text)
        texts.append(last.text)
    if len(written) > 2 * len(shares):  # of pods that are gone
        there = {share.holder.uid for share in shares}
        for uid in written.keys() - there:
            del written[uid]
    return f"{{{','.join(texts)}}}"


def _entry(share: Share, marks: Sequence[str]) -> dict[str, Any]:
    if share.state is ShareState.GONE:
        raise ValueError(f"the share of {share.holder} is gone; a Lease records only what is held")
    entry: dict[str, Any] = {share.holder.kind.value: share.holder.full_name, "state": share.state.value}
    if share.memory is not None:
        entry["mib"] = share.memory
    if share.coverage is not None:
        entry |= {"booking": share.coverage.booking, "covered": micro_seconds(share.coverage.since)}
    return {**entry, "tries": list(marks)} if marks else entry


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# --- reading ---------------------------------------------------------------------------------------------------------


Shares = tuple[dict[str, Share], dict[str, tuple[str, ...]]]
"""By uid: the shares, and the marks of the binds that rely on them."""


class _ShareEntry(msgspec.Struct, gc=False):
    state: Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(_STATES)})\Z")]
    pod: str | None = None
    claim: str | None = None
    mib: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tries: tuple[SomeText, ...] | None = None
    booking: str | None = None
    covered: str | None = None


_read_entries = msgspec.json.Decoder(dict[SomeText, _ShareEntry] | None).decode


def read_shares(text: str, subject: str, field: str, gpu: str) -> Shares:
    """Raises `Malformed`."""
    try:
        entries = _read_entries(text) or {}
    except msgspec.ValidationError as error:
        raise malformed(subject, error, field) from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Malformed(subject, field, text, "JSON") from None
    shares, tries = {}, {}
    for uid, entry in entries.items():
        if entry.pod is not None and entry.claim is not None:
            raise Malformed(subject, f"{field}[{uid}]", "both", "either a pod or a claim")
        kind = HolderKind.POD if entry.claim is None else HolderKind.CLAIM
        namespace, _, name = (entry.pod or entry.claim or "").rpartition("/")
        memory = MiB(entry.mib) if entry.mib is not None else None
        coverage = None
        if entry.booking:
            coverage = Coverage(entry.booking, instant(entry.covered or "", subject, f"{field}[{uid}].covered"))
        shares[uid] = Share(Holder(uid, namespace, name, kind), gpu, memory, _STATES[entry.state], coverage)
        if entry.tries is not None:
            tries[uid] = entry.tries
    return shares, tries


def holder_named(uid: str, full_name: Field, kind: HolderKind = HolderKind.POD) -> Holder:
    namespace, _, name = full_name.text().rpartition("/")
    return Holder(uid, namespace, name, kind)
