"""Whether a pod has a controller that replaces it. Anybody who may create a pod may write any owner on it: of the kinds
that the controller may read, only one that exists counts. Of other kinds it is believed; all it brings is that the pod
is evicted, and not created again by Carrel."""

from typing import Any

from carrel.dialects import hand_over_record
from carrel.dialects.gang_makers import PLURALS
from carrel.kubernetes.cluster import Cluster, Forbidden, Invalid, Json, NotFound
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import Resource


async def real_controller_of(cluster: Cluster, pod: Json) -> str:
    """uid of the controller of a pod; empty: it has none, or names one that does not exist. Raises `ClusterError`."""
    uid = hand_over_record.controller_of(pod)
    named = next((each for each in pod["metadata"].get("ownerReferences") or () if each.get("uid") == uid), None)
    resource = _resource(named) if named is not None else None
    if named is None or resource is None:
        return uid
    try:
        found = await cluster.get(resource, str(named["name"]), pod["metadata"]["namespace"])
    except (NotFound, Invalid):
        return ""
    except Forbidden:
        return uid
    return uid if found["metadata"].get("uid") == uid else ""


def _resource(reference: dict[str, Any]) -> Resource[Object] | None:
    """None: the controller may not read this kind."""
    group, _, version = str(reference.get("apiVersion", "")).rpartition("/")
    kind = str(reference.get("kind", ""))
    plural = PLURALS.get((group, kind))
    return Resource(Object, group, version, plural, kind) if plural is not None else None
