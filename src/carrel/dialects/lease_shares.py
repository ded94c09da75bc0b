"""The shares on the Lease of a GPU, as JSON.

    {"<uid>": {"pod": "lab/train", "mib": 8138, "state": "assigned", "tries": […],
               "booking": "<id>", "covered": "2026-…Z"}}

A Lease may have dozens of them, and mostly one of them is new: the others are neither written nor read again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from carrel.ledger.gpus import MiB
from carrel.ledger.shares import Coverage, Holder, HolderKind, Share, ShareState
from carrel.parsing.fields import Field
from carrel.parsing.time import instant, micro_seconds

Tries = Mapping[str, tuple[str, ...]]
"""uid → the marks of the binds that rely on its share."""

_PLAIN_SHARE = frozenset({"pod", "mib", "state", "tries"})
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


def read_shares(recorded: Field, gpu: str) -> tuple[dict[str, Share], dict[str, tuple[str, ...]]]:
    """By uid: the shares, and the marks of binds."""
    shares: dict[str, Share] = {}
    tries: dict[str, tuple[str, ...]] = {}
    for uid, entry in recorded.object().items():
        shares[uid] = _plain_share(uid, gpu, entry) or _share(uid, gpu, recorded[uid])
        if "tries" in entry and (tried := recorded[uid]["tries"]).present:
            tries[uid] = tried.strings()
    return shares, tries


def _plain_share(uid: str, gpu: str, entry: Any) -> Share | None:
    """The part of a pod that no booking covers, as most shares are; None: `_share` reads it, or says what is wrong."""
    if not uid or not isinstance(entry, dict) or not entry.keys() <= _PLAIN_SHARE:
        return None
    pod, memory, state = entry.get("pod"), entry.get("mib"), entry.get("state")
    if type(pod) is not str or type(memory) is not int or memory < 1 or type(state) is not str or state not in _STATES:
        return None
    namespace, _, name = pod.rpartition("/")
    return Share(Holder(uid, namespace, name), gpu, MiB(memory), _STATES[state])


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
