"""Encodes the answer to `filter`: which nodes fit, and why the others do not."""

from collections.abc import Collection, Mapping

import msgspec

from carrel.ledger.filtering import FilterResult
from carrel.scheduling import extender_calls


def write_filtered(found: FilterResult, objects: Mapping[str, object] | None) -> bytes:
    """`objects` are the nodes themselves, where the scheduler sent them."""
    if objects is not None:
        return msgspec.json.encode(extender_calls.filter_result(objects, tuple(found.fitting), found.why_not()))
    refused = b",".join(_refusals(why, nodes) for why, nodes in found.refused.items())
    return msgspec.json.encode(
        extender_calls.filter_result_of(None, tuple(found.fitting), msgspec.Raw(b"{%b}" % refused))
    )


def _refusals(why: str, nodes: Collection[str]) -> bytes:
    """Without the braces: other reasons follow."""
    names = msgspec.json.encode(tuple(nodes))
    if not nodes or b"\\" in names:
        return msgspec.json.encode(dict.fromkeys(nodes, why))[1:-1]
    # No name contains a quote, so every quote begins or ends one. This is four times as fast as a dict.
    encoded_why = msgspec.json.encode(why)
    return b'"%b":%b' % (names[2:-2].replace(b'","', b'":%b,"' % encoded_why), encoded_why)
