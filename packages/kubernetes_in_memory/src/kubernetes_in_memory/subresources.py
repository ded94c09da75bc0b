"""The subresources that are actions: binding and eviction.

Binding writes the node, the annotations and the PodScheduled condition in one step: a watcher sees one change.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from kubernetes_in_memory import status
from kubernetes_in_memory.admission import AdmissionWebhooks, Review
from kubernetes_in_memory.body_decoding import read_as
from kubernetes_in_memory.causes import required, unsupported
from kubernetes_in_memory.deletion import Deleter, read_options
from kubernetes_in_memory.kinds import DISRUPTION_BUDGETS, PODS
from kubernetes_in_memory.reads import Reads
from kubernetes_in_memory.request_info import Call
from kubernetes_in_memory.selectors import label_selector_of
from kubernetes_in_memory.store import ObjectStore, StoredObject
from kubernetes_in_memory.times import timestamp

Json = dict[str, Any]

DONE: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class Subresources:
    def __init__(
        self,
        store: ObjectStore,
        reads: Reads,
        admission: AdmissionWebhooks,
        deletion: Deleter,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._reads = reads
        self._admission = admission
        self._deletion = deletion
        self._clock = clock

    async def bind(self, call: Call) -> Json:
        binding = await self._admitted(call, "Binding", "v1")
        target = binding.get("target", {})
        node = target.get("name", "")
        causes = []
        if target.get("kind", "") not in ("", "Node"):
            causes.append(unsupported("target.kind", target["kind"], ("Node", "<empty>")))
        if not node:
            causes.append(required("target.name"))
        if causes:
            raise status.ApiError(
                422, "Invalid", f'Binding "{call.target.name}" is invalid: {causes[0].field}: {causes[0].message}'
            )
        pod = self._reads.get(call)
        self._check_bindable(pod, binding)
        if not call.dry_run:
            self._store.write(PODS.storage, pod, self._bound(pod.tree, node, binding["metadata"]))
        return DONE

    def _check_bindable(self, pod: StoredObject, binding: Json) -> None:
        name = pod.key[1]
        metadata, spec = pod.tree["metadata"], pod.tree["spec"]
        given = binding["metadata"].get("uid", "")
        why = ""
        if given and given != pod.uid:
            why = status.failed_precondition("UID", given, pod.uid)
        elif "deletionTimestamp" in metadata:
            why = f"pod {name} is being deleted, cannot be assigned to a host"
        elif spec.get("nodeName"):
            why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        elif spec.get("schedulingGates"):
            why = f"pod {name} has non-empty .spec.schedulingGates"
        if why:
            raise status.conflict(PODS, name, why, "binding")

    def _bound(self, pod: Json, node: str, given: Json) -> Json:
        metadata = dict(pod["metadata"])
        for field in ("annotations", "labels"):
            if given.get(field):
                metadata[field] = {**metadata.get(field, {}), **given[field]}
        now = timestamp(self._clock())
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
        pod_status = dict(pod.get("status", {}))
        others = [one for one in pod_status.get("conditions", ()) if one.get("type") != "PodScheduled"]
        pod_status["conditions"] = [*others, scheduled]
        return {**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": node}, "status": pod_status}

    async def evict(self, call: Call) -> Json:
        eviction = await self._admitted(call, "Eviction", "policy/v1")
        options = read_options(eviction.get("deleteOptions", {}), call)
        pod = self._reads.get(call)
        self._deletion.check_preconditions(PODS, pod, options)
        self._check_budgets(pod, options.dry_run)
        self._deletion.delete(PODS.storage, pod, options)
        return DONE

    def _check_budgets(self, pod: StoredObject, dry_run: bool) -> None:
        namespace, name = pod.key
        if pod.tree["metadata"].get("deletionTimestamp") or pod.tree.get("status", {}).get("phase") in (
            "Succeeded",
            "Failed",
            "Pending",
        ):
            return
        labels = pod.tree["metadata"].get("labels", {})
        budgets = [
            budget
            for budget in self._store.collection(DISRUPTION_BUDGETS.storage).items(namespace)
            if label_selector_of(budget.tree.get("spec", {}).get("selector")).matches(labels)
        ]
        if len(budgets) > 1:
            raise status.ApiError(
                500,
                "InternalError",
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            )
        for budget in budgets:
            self._spend(budget, name, dry_run)

    def _spend(self, budget: StoredObject, pod_name: str, dry_run: bool) -> None:
        """Takes one disruption from a budget, or refuses."""
        known = budget.tree.get("status", {})
        allowed = known.get("disruptionsAllowed", 0)
        if allowed <= 0:
            why = (
                f"The disruption budget {budget.key[1]} needs {known.get('desiredHealthy', 0)} healthy pods "
                f"and has {known.get('currentHealthy', 0)} currently"
            )
            raise status.ApiError(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                {"name": pod_name, "kind": "pods", "causes": [{"reason": "DisruptionBudget", "message": why}]},
            )
        if not dry_run:
            disrupted = {**known.get("disruptedPods", {}), pod_name: timestamp(self._clock())}
            changed = {**known, "disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}
            tree = {**budget.tree, "metadata": dict(budget.tree["metadata"]), "status": changed}
            self._store.write(DISRUPTION_BUDGETS.storage, budget, tree)

    async def _admitted(self, call: Call, kind_name: str, api_version: str) -> Json:
        body = read_as(call, kind_name)
        if body.get("kind", kind_name) != kind_name or body.get("apiVersion", api_version) != api_version:
            raise status.bad_request(
                f"{kind_name} ({api_version}) is expected here, not {body.get('kind')} ({body.get('apiVersion')})"
            )
        metadata = body.get("metadata", {})
        if metadata.get("name", call.target.name) != call.target.name:
            raise status.bad_request("the name in the body does not match the name on the URL")
        if metadata.get("namespace", call.target.namespace) != call.target.namespace:
            raise status.bad_request("the namespace in the body does not match the namespace on the URL")
        body = {"apiVersion": api_version, "kind": kind_name, **body, "metadata": metadata}
        dry_run = call.dry_run or "All" in body.get("deleteOptions", {}).get("dryRun", ())
        mutated: Json = await self._admission.mutate(Review("CREATE", call, body, None, dry_run))
        await self._admission.validate(Review("CREATE", call, mutated, None, dry_run))
        return mutated
