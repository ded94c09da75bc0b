"""A booked pod whose GPUs are lent to others, because GPUs were free for it and kube-scheduler did not place it.

    carrel.dev/gpus-lent: {"until": "2026-…Z", "times": 2, "said": "3f1c…"}

Something else than GPUs is missing, CPU or a volume for example, and only kube-scheduler knows what. So the pod gets
GPUs by revocation again when kube-scheduler says something else about it than it said then (`said`). Its numbers count:
one node less that lacks CPU is one more for the pod. And not before an instant, which lies twice as far ahead each
time: a pod that never finds a place must not take GPUs from others again and again. Until then it is still booked, and
may take what is free. `said` is empty where Carrel knows itself why the pod could not use them, because its gang lacks
others: then only the time counts, since kube-scheduler's words would stay the same.
"""

import hashlib
import json
from datetime import datetime, timedelta

from carrel.dialects.carrel import GPUS_LENT
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.parsing.fields import Field
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import instant, seconds

FIRST = timedelta(minutes=5)
MOST_TIMES = 12
"""Twice as long each time: after so many, two weeks, which is as long as a booking usually lasts at most."""


def is_lent(pod: Pod, now: datetime) -> bool:
    """Whether the GPUs of a booked pod that waits are lent to others. What cannot be read counts for nothing."""
    if GPUS_LENT not in pod.metadata.annotations:
        return False  # nearly all pods
    try:
        field = _field(pod)
        until = instant(field["until"].some_text(), subject(pod.metadata), field["until"].path)
        return now < until or field["said"].text() == _digest(scheduler_words(pod))
    except Malformed:
        return False


def lent_until(pod: Pod, now: datetime, *, is_known_why: bool = False) -> tuple[datetime, dict[str, str]]:
    """Until when its GPUs are lent at least, from now on, and the annotation that says so. `is_known_why`: to Carrel,
    so that nothing but the time counts."""
    times = 1
    if GPUS_LENT in pod.metadata.annotations:
        try:
            times = min(max(1, _field(pod)["times"].integer() + 1), MOST_TIMES)
        except Malformed:
            times = MOST_TIMES
    until = now + FIRST * 2 ** (times - 1)
    said = "" if is_known_why else _digest(scheduler_words(pod))
    note = {"until": seconds(until), "times": times, "said": said}
    return until, {GPUS_LENT: json.dumps(note, separators=(",", ":"))}


def scheduler_words(pod: Pod) -> str:
    """Why kube-scheduler could not place the pod."""
    return next((each.message for each in pod.status.conditions if each.type == "PodScheduled"), "")


def _field(pod: Pod) -> Field:
    return Field.parse(pod.metadata.annotations[GPUS_LENT], subject(pod.metadata), annotation_field(GPUS_LENT))


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:16]
