"""What the spawner writes in the cluster about a pod that Carrel hands over, with the hub's own rights.

A right that is missing is said once, with the rule that helps; the server is stopped or goes on all the same.
"""

import logging
from typing import Any

from kubernetes_asyncio.client.rest import ApiException

from carrel.dialects.carrel import NO_SUCCESSOR
from carrel.jupyterhub.hand_over import Pod

log = logging.getLogger(__name__)

FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409


class SuccessorWriter:
    """For the pod of one server."""

    def __init__(self, api: Any, namespace: str, pod: str) -> None:
        self._api = api
        self._namespace = namespace
        self._pod = pod

    async def withdraw(self) -> None:
        """Says on the pod that no successor is wanted; before it is deleted, or it may be too late."""
        patch = {"metadata": {"annotations": {NO_SUCCESSOR: "true"}}}
        try:
            await self._api.patch_namespaced_pod(self._pod, self._namespace, patch)
        except ApiException as error:
            _explain(error, f"pod {self._pod} may come back on CPU", "patch pods")

    async def delete(self, successor: Pod) -> None:
        """Only that pod: by now another one of the same name may have been started."""
        only_it = {"preconditions": {"uid": successor["metadata"]["uid"]}}
        try:
            await self._api.delete_namespaced_pod(self._pod, self._namespace, body=only_it)
        except ApiException as error:
            _explain(error, f"pod {self._pod}, which nobody wants, stays", "delete pods")

    async def give(self, kind: str, name: str, origin: str, successor: Pod) -> None:
        """The Secret or the Service that belonged to the first pod belongs to its successor, and ends with it."""
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self._pod, "uid": successor["metadata"]["uid"]}
        ended = {"$patch": "delete", "uid": origin}
        patch = {"metadata": {"ownerReferences": [ended, {**owner, "blockOwnerDeletion": True}]}}
        change = getattr(self._api, f"patch_namespaced_{kind}")
        try:
            await change(name, self._namespace, patch)
        except ApiException as error:
            _explain(error, f"{kind} {name} does not belong to the pod that uses it", f"patch {kind}s")


def _explain(error: ApiException, consequence: str, right: str) -> None:
    """What is gone already needs nothing. Raises what is none of these: the call may be tried again."""
    if error.status == FORBIDDEN:
        log.warning("The hub may not %s, so %s. docs/jupyterhub.md has the Role that allows it.", right, consequence)
    elif error.status not in (NOT_FOUND, CONFLICT):
        raise error
