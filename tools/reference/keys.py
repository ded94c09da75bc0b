"""events-and-annotations.md: annotations, labels and resources by dialect, and the reasons of Events.

The docstring of each dialect lists its words; it is shown as it is. A key that the dialect's module names as a constant
and that its docstring does not list is reported as undocumented, and so is the reason of an Event without a meaning.
"""

import ast
import re
from collections.abc import Iterator

from carrel.dialects.protected_keys import is_protected_annotation, is_protected_label
from tools.reference import Page, code, document, table
from tools.reference.source import Module, argument, called, component, modules, text

KEY = re.compile(r"([a-z0-9-]+\.)+[a-z]+/[A-Za-z0-9._-]+|[A-Z]+(_[A-Z0-9]+){2,}")
"""`carrel.dev/tier`, `ALIYUN_COM_GPU_MEM_IDX`."""
WORD = re.compile(r"[A-Za-z0-9._/-]+")
"""What could be a key."""

MEANINGS = {
    "ConfigurationRefused": "On the ConfigMap `carrel`: why what is given is not in force. The last good one goes on.",
    "WaitingForGPU": "The pod waits: what is missing, on which GPU, and who holds it.",
    "GPUAssigned": "Which GPUs the pod got, and on which node.",
    "GPUWithoutLease": "A ResourceClaim has a GPU without a Lease, and does not fit there: how much is free.",
    "WithoutEffect": "Words of KAI on pods of this namespace that Carrel does not heed.",
    "RunsWithoutGPU": "The pod runs without the GPU that it asked for: why, and when one will be free.",
    "NoGPUFree": "The pod has waited for a GPU, and goes on without one.",
    "CoveredByBooking": "A booking covers the pod from now on: which, and until when.",
    "NotCoveredByBooking": "No booking covers the pod any more, and what that means for it.",
    "BookingStarted": "The booking that the pod waited for has started.",
    "BookingCancelled": "The booking that the pod waited for no longer exists; it goes on without one.",
    "BookingEnds": "The pod's booking ends soon, and what becomes of the pod then.",
    "BookingEnded": "The booking has ended; the pod is ended or goes on without a GPU.",
    "GPURevoked": "A booked pod needs the GPU; when the pod is ended, and what becomes of it.",
    "RevocationCalledOff": "Nobody needs the GPU of this pod any more: it goes on, and keeps it.",
    "GPUGivenUp": "GPUs were free for this booked pod, which was not placed: others may use them now, and until when.",
    "GPUKept": "A GPU is kept for this booked pod: who has to give it back, and until when.",
    "RevocationHeldUp": "The pod should have ended and has not: what holds it up.",
    "GPUPodEndsSlowly": "The pod takes too long to end: when it is deleted again, with a short grace period.",
    "NotHandedOver": "The pod is ended and does not go on without a GPU: why not.",
    "HandedOverToCPU": "This pod goes on without a GPU, for one that lost it, and why.",
    "TerminateAtUnreadable": "The pod's `terminate-at` cannot be read; what is expected.",
    "OtherGPUHandedOver": "The kubelet gave the pod another GPU than it was promised.",
    "GPUHandedOverTwice": "By the kubelet's own list, the pod has its GPU together with another pod.",
    "GPUFieldsDropped": "On a Node: which fields of its GPUs the cluster's definition drops, and what to apply.",
    "GPUReleased": "On a Node that was away: who freed which of its GPUs by hand.",
    "GPUNotPromised": "The pod sees a GPU that nobody promised it.",
    "GPUMemoryNotLimited": "The driver lets a container use another amount of GPU memory than it was promised.",
}
"""Reason of an Event → what its message says."""
COMMANDS = {"carrel/cluster/record/release.py": "release"}
"""Module that writes Events for a command that people type → the command."""


def page() -> Page:
    dialects = [
        module
        for module in modules()
        if module.folder in ("dialects", "resource_claims", "resource_claims/shadows")
        and module.path.stem != "__init__"
    ]
    missing = [
        f"{module.place}: {key} is not in the docstring"
        for module in dialects
        for key in _keys(module)
        if key.rpartition("/")[2] not in module.docstring
    ]
    found = sorted(set(_reasons()))
    missing += [
        f"{reason}: tools/reference/keys.py has no meaning for it" for _, reason, _ in found if reason not in MEANINGS
    ]
    written = {reason for _, reason, _ in found}
    missing += [f"{reason}: has a meaning, and no code" for reason in MEANINGS if reason not in written]
    rows = [[code(reason), kind, f"carrel {by}", MEANINGS.get(reason, "")] for by, reason, kind in found]
    parts = [
        "## Events\n\nThe reasons of the Events that Carrel writes about pods.\n\n"
        + table(["reason", "type", "by", "meaning"], rows),
        "## Keys that only Carrel may write\n\nThe webhook removes them from what others create, and an admission"
        " policy refuses updates of them. Everything else under `carrel.dev/` is protected too, except what users ask"
        " with.\n\n" + table(["key", "kind"], list(_protected(dialects))),
        *(f"## {module.path.stem}.py\n\n```\n{module.docstring}\n```" for module in dialects if _has_keys(module)),
    ]
    introduction = (
        "What Carrel reads and writes on Kubernetes objects. Each word is spelled once in the code, in its dialect"
        " (`src/carrel/dialects`); the lists below are the docstrings of those modules."
    )
    return Page("events-and-annotations.md", document("Events and annotations", introduction, *parts), tuple(missing))


def _keys(module: Module) -> list[str]:
    return [value for name, value in module.constants().items() if name.isupper() and KEY.fullmatch(value)]


def _has_keys(module: Module) -> bool:
    return bool(_keys(module))


def _protected(dialects: list[Module]) -> Iterator[list[str]]:
    """Of the words that the dialects spell, those that the webhook and the policies protect."""
    for word in sorted({word for module in dialects for word in module.constants().values() if WORD.fullmatch(word)}):
        kinds = ["annotation"] if is_protected_annotation(word) else []
        kinds += ["label"] if is_protected_label(word) else []
        if kinds:
            yield [code(word), ", ".join(kinds)]


def _reasons() -> Iterator[tuple[str, str, str]]:
    """Component, reason, type: of each call that makes the text of an Event."""
    maker = _class_of_event_texts()
    for module in modules():
        known = module.constants()
        for call in module.calls():
            by = component(module) or COMMANDS.get(module.place, "")
            if called(call) == maker and by:
                reason, kind = text(argument(call, 0, "reason"), known), argument(call, 2, "type")
                if reason:
                    yield by, reason, "Warning" if kind and "WARN" in ast.unparse(kind) else "Normal"


def _class_of_event_texts() -> str:
    """The dataclass with the fields of an Event: its name may change, its fields may not."""
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and module.folder == "kubernetes":
                fields = [ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)]
                if fields[:3] == ["reason", "message", "type"]:
                    return node.name
    raise LookupError("no class with the fields reason, message and type")
