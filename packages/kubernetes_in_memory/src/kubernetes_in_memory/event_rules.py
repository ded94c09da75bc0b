"""Checks of Events. One with an `eventTime` is of the newer kind, which has more required fields.

The group events.k8s.io accepts only the newer kind, and afterwards only its series may change: how often it was
repeated. Trees are in the core group's form.
"""

from typing import Any

from kubernetes_in_memory.causes import Cause, required, wrong
from kubernetes_in_memory.objects import KEY_RULE, is_qualified

Json = dict[str, Any]

LONGEST = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
OLD_WORDS = ("firstTimestamp", "lastTimestamp", "count", "source")
FIXED = (
    *("involvedObject", "reason", "message", *OLD_WORDS, "type", "eventTime"),
    *("action", "related", "reportingComponent", "reportingInstance"),
)


def check(event: Json, live: Json | None) -> list[Cause]:
    home, about = event["metadata"]["namespace"], event.get("involvedObject", {}).get("namespace", "")
    if not event.get("eventTime"):
        # An event about something without a namespace is kept in `default`.
        fits = home == (about or "default")
        return [] if fits else [_elsewhere(about)]
    causes = [] if about or home in ("default", "kube-system") else [_elsewhere(about)]
    causes += [
        required(field)
        for field in ("reportingComponent", "reportingInstance", "action", "reason")
        if not event.get(field)
    ]
    if event.get("reportingComponent") and not is_qualified(event["reportingComponent"]):
        causes.append(wrong("reportingComponent", event["reportingComponent"], KEY_RULE))
    causes += [
        wrong(field, "", f"can have at most {most} characters")
        for field, most in LONGEST.items()
        if len(event.get(field, "")) > most
    ]
    return causes


def _elsewhere(namespace: str) -> Cause:
    return wrong("involvedObject.namespace", namespace, "does not match event.namespace")


def check_of_events_group(event: Json, live: Json | None) -> list[Cause]:
    causes = check(event, live)
    if live is None or event.get("series") != live.get("series"):
        causes += _series_causes(event)
    if live is not None:
        changed = (field for field in FIXED if event.get(field) != live.get(field))
        return causes + [wrong(field, event.get(field), "field is immutable") for field in changed]
    if not event.get("eventTime"):
        causes.append(required("eventTime"))
    if event.get("type") not in ("Normal", "Warning"):
        causes.append(wrong("type", "", f"has invalid value: {event.get('type', '')}"))
    return causes + [wrong(field, "", "needs to be unset") for field in OLD_WORDS if event.get(field)]


def _series_causes(event: Json) -> list[Cause]:
    series = event.get("series")
    if series is None:
        return []
    causes = []
    if series.get("count", 0) < 2:
        causes.append(wrong("series.count", "", "should be at least 2"))
    if not series.get("lastObservedTime"):
        causes.append(required("series.lastObservedTime"))
    return causes
