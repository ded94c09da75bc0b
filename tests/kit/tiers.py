"""Booked and opportunistic pods on the lab's cluster, and a stand-in for kube-scheduler that places them."""

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

from carrel.cluster.pod_progress import is_waiting
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.options import WhenFull
from carrel.ids import NodeName
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch, NotFound, Selection
from carrel.kubernetes.objects.resources import CONFIG_MAPS, EVENTS, PODS, SECRETS, SERVICES
from carrel.ledger.refusals import Refusal
from carrel.ledger.tiers import AtEnd
from carrel.lifecycle.assembly import tier_parts_on
from carrel.lifecycle.handing_over.hand_over import HandOverResult
from carrel.lifecycle.revoking.opportunistic_pods import OpportunisticPods
from carrel.lifecycle.tier_options import TierOptions
from tests.kit.eventually import eventually
from tests.kit.gpus import N1
from tests.kit.lab import BOOKER, Lab, Replica

WHOLE = {"nvidia.com/gpu": "1"}
BOOKED = {"carrel.dev/tier": "booked", "carrel.dev/user": BOOKER}
OF_A_HUB = {"hub.jupyter.org/username": "ada"}
"""A label of pods that JupyterHub makes."""
OPPORTUNISTIC = {"carrel.dev/tier": "opportunistic", "terminate-at": "1900-01-01T08:00:00Z"}


class TierController:
    """What the leader does about the two tiers, on one replica, one round at a time."""

    def __init__(
        self,
        replica: Replica,
        grace_s: float = 0,
        random_victims: bool = False,
        at_end: AtEnd = AtEnd.CPU,
        minimum_time: timedelta = timedelta(),
        notebook_grace_s: float = 0,
        wait_before_cpu_s: float = 0,
        when_full: WhenFull = WhenFull.DEFAULT,
    ) -> None:
        self.replica = replica
        self.options = TierOptions(
            frozenset({"gpu-scheduler"}),
            timedelta(seconds=grace_s),
            random_victims,
            at_end,
            minimum_time,
            timedelta(seconds=notebook_grace_s),
            timedelta(seconds=wait_before_cpu_s),
            when_full,
        )
        self.parts = tier_parts_on(replica, self.options)
        self.results: list[HandOverResult] = []

    async def round(self) -> None:
        """Everything once."""
        hand_overs = self.parts.hand_overs
        await self.parts.correction.round()
        await self.parts.expiry.warn_all()
        await self.parts.notices.round()
        await self.parts.expiry.end_expired()
        await self.parts.revoker.revoke_for_next()
        self.check_what_is_kept()
        for each in self.parts.after_revocation:
            await each.round()
        await self.parts.cpu_after_wait.begin_due()
        await self.parts.slow_endings.round()
        await self.parts.unplaced.round()
        for name in await hand_overs.record_names():
            result: timedelta | HandOverResult = timedelta()
            while result == timedelta():
                result = await hand_overs.advance(name)
            if isinstance(result, HandOverResult):
                self.results.append(result)
        await self.replica.collector.collect()

    def check_what_is_kept(self) -> None:
        """What revocation keeps of pods between its rounds is what it would find anew."""
        state, revoker = self.replica, self.parts.revoker
        found = revoker.pods.read()
        expected = {
            uid for uid in state.ledger.holders() if state.pod_facts.holder_may_lose_gpus(uid)
        } - found.stuck.keys()
        assert found.victims.keys() == expected
        anew = OpportunisticPods(state, self.parts.hand_overs, self.options).read()
        assert found.victims == {uid: pod for uid, pod in anew.victims.items() if uid not in found.stuck}


async def settle(
    lab: Lab, controller: TierController, nodes: Iterable[NodeName] = (N1,), lacking: Collection[str] = ()
) -> None:
    """The controller, the scheduler and the kubelets work until nothing changes any more. `lacking`: the names of pods
    for which no node has enough CPU."""
    before = ""
    for _ in range(40):
        await catch_up(lab, controller.replica)
        await controller.round()
        await catch_up(lab, controller.replica)
        await schedule(lab, controller.replica, tuple(nodes), lacking=lacking)
        await end_deleted(lab)
        now = str(sorted(map(str, await everything(lab))))
        if now == before:
            return
        before = now
    raise AssertionError("it still changes after 40 rounds")


async def everything(lab: Lab) -> list[Any]:
    pods = (await lab.client.list(PODS, Selection("lab"))).items
    records = (await lab.client.list(CONFIG_MAPS, Selection("carrel"))).items
    return [
        *((pod.metadata.uid, pod.spec.node_name, pod.metadata.deletion_timestamp) for pod in pods),
        *(record.metadata.name for record in records),
        *(await lab.held()).items(),
    ]


async def hand_over_records(lab: Lab) -> list[str]:
    """With the manifests of successors that are kept for them."""
    ours = Selection("carrel")
    records, manifests = await lab.client.list(CONFIG_MAPS, ours), await lab.client.list(SECRETS, ours)
    return [each.metadata.name for each in (*records.items, *manifests.items)]


async def a_service_of(lab: Lab, pod: Json, name: str = "") -> Json:
    """A Service that the pod owns, as a hub makes one for a notebook: of its name, or of another."""
    metadata = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name or metadata["name"], "ownerReferences": [{**owner, "blockOwnerDeletion": True}]},
        "spec": {"ports": [{"port": 8888}], "selector": {"app": metadata["name"]}},
    }
    return await lab.client.create(SERVICES, body, metadata["namespace"])


async def owners_of_services(lab: Lab) -> dict[str, list[str]]:
    """Service → the uids of its owners."""
    found = (await lab.client.list(SERVICES, Selection("lab"))).items
    return {each.metadata.name: [owner.uid for owner in each.metadata.owner_references] for each in found}


async def event_reasons(lab: Lab) -> list[str]:
    """As `reason pod`."""
    found = (await lab.client.list(EVENTS, Selection("lab"))).items
    return [f"{each.reason} {each.involved_object.name}" for each in found]


async def catch_up(lab: Lab, replica: Replica) -> None:
    """Waits until the replica's cache shows the pods as they are."""
    there = {each.metadata.uid: each.metadata.resource_version for each in (await lab.client.list(PODS)).items}
    bookings = {each.metadata.uid: each.metadata.resource_version for each in (await lab.client.list(BOOKINGS)).items}

    def has_caught_up() -> bool:
        known = {each.metadata.uid: each.metadata.resource_version for each in replica.pods.store}
        booked = {each.metadata.uid: each.metadata.resource_version for each in replica.bookings.store}
        return known == there and booked == bookings

    await eventually(has_caught_up, "the cache shows pods and bookings as they are")


async def pods_of(lab: Lab) -> dict[str, Any]:
    return {each.metadata.name: each for each in (await lab.client.list(PODS, Selection("lab"))).items}


async def schedule(
    lab: Lab, replica: Replica, nodes: tuple[NodeName, ...], *, chooses: bool = False, lacking: Collection[str] = ()
) -> None:
    """As kube-scheduler does with the extender: binds the pods that fit, and marks the others as unschedulable.
    `chooses`: the extender names one node."""
    for pod in sorted(replica.pods.store, key=lambda each: (each.metadata.creation_timestamp, each.metadata.name)):
        if not is_waiting(pod) or pod.spec.scheduler_name != "gpu-scheduler":
            continue
        if pod.metadata.name in lacking:
            await mark_unschedulable(lab, pod.metadata.name, pod.metadata.namespace, "0/1 nodes: 1 Insufficient cpu.")
            continue
        fitting = replica.filter(pod, nodes, chooses=chooses).fitting
        refused = await replica.scheduler.bind(pod, min(fitting)) if fitting else Refusal("no room")
        if refused is None:
            running = {"phase": "Running", "startTime": lab.clock.now.isoformat()}
            await set_status(lab, pod.metadata.name, running, pod.metadata.namespace)
        elif not pod.status.conditions:
            await mark_unschedulable(lab, pod.metadata.name, pod.metadata.namespace)


async def mark_unschedulable(lab: Lab, name: str, namespace: str = "lab", why: str = "no node fits") -> None:
    """What kube-scheduler writes on a pod that it could not place."""
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    await set_status(lab, name, {"conditions": [no_room]}, namespace)


async def set_status(lab: Lab, name: str, status: Mapping[str, Any], namespace: str = "lab") -> None:
    await lab.client.patch(PODS, name, MergePatch({"status": status}), namespace, subresource="status")


async def end_deleted(lab: Lab) -> None:
    """As a kubelet does: the containers have stopped, and the pod is removed."""
    for pod in (await pods_of(lab)).values():
        if pod.metadata.deletion_timestamp:
            try:
                only_it = DeleteOptions(uid=pod.metadata.uid, grace_seconds=0)
                await lab.client.delete(PODS, pod.metadata.name, "lab", how=only_it)
            except NotFound:
                pass


async def remove_gates(lab: Lab, name: str) -> Json:
    """Removes the scheduling gates of a pod."""
    return await lab.client.patch(PODS, name, MergePatch({"spec": {"schedulingGates": None}}), "lab")


async def an_owner(lab: Lab) -> Json:
    """A reference to an existing controller; its kind does not matter."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    uid = (await lab.client.create(CONFIG_MAPS, body, "lab"))["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "controller": True}


async def an_opportunistic_pod(lab: Lab, replica: Replica, name: str, node: str = "n1", **spec: Any) -> Json:
    """A pod without a booking that runs with a GPU."""
    return await _running(
        lab, replica, await lab.pod(name, **{"limits": WHOLE, "annotations": OPPORTUNISTIC, **spec}), node
    )


async def a_booked_pod(lab: Lab, replica: Replica, name: str, node: str = "n1") -> Json:
    return await _running(lab, replica, await lab.pod(name, limits=WHOLE, annotations=BOOKED), node)


async def _running(lab: Lab, replica: Replica, pod: Json, node: str) -> Json:
    assert await replica.bind(pod, node) is None
    name = pod["metadata"]["name"]
    await set_status(lab, name, {"phase": "Running", "startTime": lab.clock.now.isoformat()})
    return await lab.client.get(PODS, name, "lab")


async def an_unschedulable_booked_pod(lab: Lab, name: str, **spec: Any) -> Json:
    """A booked pod for which kube-scheduler has found no node."""
    namespace = spec.get("namespace", "lab")
    await lab.pod(name, **{"limits": WHOLE, "annotations": BOOKED, **spec})
    await mark_unschedulable(lab, name, namespace)
    return await lab.client.get(PODS, name, namespace)
