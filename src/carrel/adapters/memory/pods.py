"""Pods: the defaults that Carrel and its users see, and the checks that refuse a malformed manifest."""

from typing import Any

from carrel.adapters.memory.causes import Cause, required

Json = dict[str, Any]


def default(pod: Json) -> None:
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    pod.setdefault("status", {}).setdefault("phase", "Pending")


def check(pod: Json, live: Json | None) -> list[Cause]:
    if not pod.get("spec", {}).get("containers"):
        return [required("spec.containers")]
    return []
