"""Whether a pod leaves room for what Carrel writes on it later: PURE.

The API server stores objects of about 1.5 MiB, with annotations of 256 KiB together. A GPU pod that is only just small
enough could never be bound, as the names of its GPUs would not fit; nor could its person be warned.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from carrel.ledger.refusals import Refusal

LARGEST_POD = 1024 * 1024
"""Bytes, as JSON. The rest is for what Carrel, kube-scheduler and the kubelet write on it."""
LARGEST_ANNOTATIONS = 128 * 1024
"""Bytes of keys and values: a half of what the API server stores."""


def why_too_large(pod: Mapping[str, Any], name: str, review_bytes: int) -> Refusal | None:
    """`review_bytes`: of the review that the pod came in. Only if that is large, the pod is measured."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    notes = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if notes > LARGEST_ANNOTATIONS:
        return Refusal(f"{name} asks for a GPU and has {notes:,} bytes of annotations; at most {LARGEST_ANNOTATIONS:,}")
    if review_bytes <= LARGEST_POD:
        return None
    size = len(msgspec.json.encode(pod))
    if size <= LARGEST_POD:
        return None
    return Refusal(f"{name} asks for a GPU and has {size:,} bytes; at most {LARGEST_POD:,}, to leave room for its GPUs")
