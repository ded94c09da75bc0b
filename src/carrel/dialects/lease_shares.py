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
from carrel.parsing.fields import Field
from carrel.parsing.time import instant, micro_seconds

Tries = Mapping[str, tuple[str, ...]]
"""uid → the marks of the binds that rely on its share."""

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


class _UsualEntry(msgspec.Struct, gc=False):
    """A share as Carrel writes it."""

    state: str
    pod: str | None = None
    claim: str | None = None
    mib: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tries: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] | None = None
    booking: str | None = None
    covered: str = ""


_read_usual = msgspec.json.Decoder(dict[Annotated[str, msgspec.Meta(min_length=1)], _UsualEntry]).decode


def read_usual_shares(text: str, gpu: str) -> Shares | None:
    """The same as `read_shares` for what Carrel writes itself and no booking covers, several times as fast: a process
    that starts reads the Leases of all GPUs. None: `read_shares` has to look, which can also say what is wrong."""
    try:
        entries = _read_usual(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    shares, tries = {}, {}
    for uid, entry in entries.items():
        if entry.state not in _STATES or (entry.pod is None) is (entry.claim is None) or entry.booking:
            return None
        kind = HolderKind.POD if entry.claim is None else HolderKind.CLAIM
        namespace, _, name = (entry.pod or entry.claim or "").rpartition("/")
        memory = MiB(entry.mib) if entry.mib is not None else None
        shares[uid] = Share(Holder(uid, namespace, name, kind), gpu, memory, _STATES[entry.state])
        if entry.tries is not None:
            tries[uid] = entry.tries
    return shares, tries


def read_shares(recorded: Field, gpu: str) -> Shares:
    """Raises `Malformed`."""
    entries = recorded.entries()
    shares = {uid: _share(uid, gpu, entry) for uid, entry in entries.items()}
    return shares, {uid: tried.strings() for uid, entry in entries.items() if (tried := entry["tries"]).present}


def holder_named(uid: str, full_name: Field, kind: HolderKind = HolderKind.POD) -> Holder:
    namespace, _, name = full_name.text().rpartition("/")
    return Holder(uid, namespace, name, kind)


def _holder_of_share(uid: str, entry: Field) -> Holder:
    pod, claim = entry[HolderKind.POD.value], entry[HolderKind.CLAIM.value]
    if pod.present and claim.present:
        raise entry.malformed("either a pod or a claim")
    return holder_named(uid, claim, HolderKind.CLAIM) if claim.present else holder_named(uid, pod)


def _share(uid: str, gpu: str, entry: Field) -> Share:
    state, mib = entry["state"], entry["mib"]
    if state.text() not in _STATES:
        raise state.malformed(", ".join(_STATES))
    if not uid:
        raise entry.malformed("the uid of a pod or a claim as its key")
    memory = MiB(mib.integer(at_least=1)) if mib.present else None
    return Share(_holder_of_share(uid, entry), gpu, memory, _STATES[state.text()], _coverage(entry))


def _coverage(entry: Field) -> Coverage | None:
    if not (booking := entry["booking"].text()):
        return None
    return Coverage(booking, instant(entry["covered"].some_text(), entry.subject, entry["covered"].path))
