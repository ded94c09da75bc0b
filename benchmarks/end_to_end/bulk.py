"""Writes many objects straight into etcd, as kube-apiserver would store them, and removes them again.

Twenty times as fast as calls: a cluster of 5,000 nodes and 50,000 pods is there in seconds. kube-apiserver reads JSON
as well as its own encoding, fills in what has a default, and hears of every object by its own watch of etcd.
"""

import base64
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from uuid import uuid4

from carrel.kubernetes.cluster import Json
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import NODES, Resource
from testbed.control_plane import ApiServer

AT_ONCE = 100
"""Objects in one transaction; etcd takes 128."""


def add_objects(api: ApiServer, resource: Resource[Object], objects: Iterable[Json]) -> list[Json]:
    """The objects as they are stored: with their uids, and the time of their creation."""
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    stored = []
    left = iter(objects)
    while some := list(islice(left, AT_ONCE)):
        puts = []
        for each in some:
            metadata = {**each["metadata"], "uid": str(uuid4()), "creationTimestamp": created}
            item = {**each, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
            key = _prefix(resource, metadata.get("namespace", "")) + metadata["name"]
            puts.append({"requestPut": {"key": _text(key), "value": _text(json.dumps(item))}})
            stored.append(item)
        api.ask_etcd("txn", {"success": puts})
    return stored


def remove_objects(api: ApiServer, resource: Resource[Object], namespace: str) -> None:
    """All of a namespace."""
    prefix = _prefix(resource, namespace)
    api.ask_etcd("deleterange", {"key": _text(prefix), "range_end": _text(prefix[:-1] + chr(ord("/") + 1))})


def _prefix(resource: Resource[Object], namespace: str) -> str:
    """Of their keys. Custom resources are stored by group, Nodes by the name that they had long ago."""
    is_custom = "." in resource.group and not resource.group.endswith(".k8s.io")
    name = f"{resource.group}/{resource.plural}" if is_custom else resource.plural
    plural = "minions" if resource is NODES else name
    return f"/registry/{plural}/{namespace}/" if namespace else f"/registry/{plural}/"


def _text(plain: str) -> str:
    return base64.b64encode(plain.encode()).decode()
