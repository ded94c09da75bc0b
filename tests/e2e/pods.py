"""Pods, as the end-to-end tests write them, and the waiting for what becomes of them."""

import json
import secrets
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from testbed.control_plane import ApiServer

T = TypeVar("T")
Json = dict[str, Any]


def eventually(look: Callable[[], T], limit_s: float = 180) -> T:
    """What `look` returns, once it is true. The limit is for broken components, not for slow ones."""
    deadline = time.monotonic() + limit_s
    while not (seen := look()):
        assert time.monotonic() <= deadline, f"not within {limit_s} s: {seen!r}"
        time.sleep(0.1)
    return seen


@contextmanager
def namespace(api: ApiServer) -> Iterator[str]:
    """One that only this test uses."""
    name = f"e2e-{secrets.token_hex(4)}"
    api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    api.wait_for_namespace(name)
    try:
        yield name
    finally:
        # Also after a failure: what its pods hold would be missing to the tests that follow.
        api.call("DELETE", f"/api/v1/namespaces/{name}")


def pod(name: str, command: str = "sleep 3600", limits: Mapping[str, str] | None = None, **spec: Any) -> Json:
    container = {
        "name": "main",
        "image": "testbed/busybox:1",
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
        "resources": {"limits": dict(limits or {})},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1} | spec,
    }


def create(api: ApiServer, namespace: str, manifest: Json) -> Json:
    created: Json = api.call("POST", f"/api/v1/namespaces/{namespace}/pods", manifest)
    return created


def phase(api: ApiServer, namespace: str, name: str) -> str:
    return str(api.call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]["phase"])


def wait_for_phase(api: ApiServer, namespace: str, name: str, wanted: str) -> Json:
    def arrived() -> Json | None:
        seen: Json = api.call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        assert seen["status"]["phase"] in (wanted, "Pending", "Running"), json.dumps(seen["status"], indent=2)
        return seen if seen["status"]["phase"] == wanted else None

    found = eventually(arrived)
    assert found is not None
    return found


def is_gone(api: ApiServer, path: str) -> bool:
    try:
        api.call("GET", path)
    except urllib.error.HTTPError as error:
        return error.code == 404
    return False
