"""Booked and opportunistic pods on the lab's cluster, and a stand-in for kube-scheduler that places them."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from random import Random
from typing import Any

from carrel.bookings.client.interface import BookingService
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch, NotFound, Selection
from carrel.kubernetes.objects.resources import CONFIG_MAPS, PODS
from carrel.leases.cluster_state import NAMESPACE_OF
from carrel.leases.pods import is_waiting
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.expiry import Expiry, ExpiryOptions
from carrel.lifecycle.hand_over import End, HandOverContext, HandOvers
from carrel.lifecycle.revocation import RevocationContext, Revoker
from tests.kit.eventually import eventually
from tests.kit.lab import Lab, Replica

WHOLE = {"nvidia.com/gpu": "1"}
BOOKED = {"carrel.dev/tier": "booked"}
OPPORTUNISTIC = {"carrel.dev/tier": "opportunistic", "terminate-at": "1900-01-01T08:00:00Z"}


class Terminator:
    """What a controller does about tiers, on one replica, one round at a time."""

    def __init__(
        self,
        carrel: Replica,
        grace_s: float = 0,
        by_lot: bool = False,
        go_on: bool = True,
        bookings: BookingService | None = None,
    ) -> None:
        self.carrel = carrel
        now, pods = carrel.options.now, carrel.pods.store
        hand_over_context = HandOverContext(
            carrel.cluster, "carrel", now, lambda namespace: pods.find(NAMESPACE_OF, namespace)
        )
        self.hand_overs = HandOvers(hand_over_context)
        context = RevocationContext(
            pods=pods.snapshot,
            pod_by_uid=pods.by_uid,
            understand=carrel.understand,
            nodes_for=carrel.nodes_for,
            now=now,
            schedulers=frozenset({"gpu-scheduler"}),
            grace=timedelta(seconds=grace_s),
            lot=Random if by_lot else None,
        )
        self.revoking = Revoker(carrel.cluster, carrel.cluster_ledger, carrel.lease_writer, self.hand_overs, context)
        self.expiry = Expiry(carrel.cluster, pods.snapshot, self.hand_overs, ExpiryOptions(now, go_on, bookings))
        self.ends: list[End] = []

    async def round(self) -> None:
        """Everything that a controller does, once."""
        for warning in self.expiry.warnings():
            await self.expiry.warn(warning)
        for pod in self.expiry.over():
            await self.expiry.end(pod)
        await self.revoking.round()
        for name in await self.hand_overs.under_way():
            step: timedelta | End = timedelta()
            while step == timedelta():
                step = await self.hand_overs.advance(name)
            if isinstance(step, End):
                self.ends.append(step)
        await self.carrel.collector.collect()


async def settle(lab: Lab, terminator: Terminator, nodes: Iterable[str] = ("n1",)) -> None:
    """The controller, the scheduler and the kubelets do their work until nothing changes any more."""
    before = ""
    for _ in range(40):
        await catch_up(lab, terminator.carrel)
        await terminator.round()
        await catch_up(lab, terminator.carrel)
        await schedule(lab, terminator.carrel, tuple(nodes))
        await end_deleted(lab)
        now = str(sorted(map(str, await everything(lab))))
        if now == before:
            return
        before = now
    raise AssertionError("it does not come to rest")


async def everything(lab: Lab) -> list[Any]:
    pods = (await lab.client.list(PODS, Selection("lab"))).items
    records = (await lab.client.list(CONFIG_MAPS, Selection("carrel"))).items
    return [
        *((pod.metadata.uid, pod.spec.node_name, pod.metadata.deletion_timestamp) for pod in pods),
        *(record.metadata.name for record in records),
        *(await lab.held()).items(),
    ]


async def catch_up(lab: Lab, replica: Replica) -> None:
    """The replica's cache shows the pods as they are."""
    there = {each.metadata.uid: each.metadata.resource_version for each in (await pods_of(lab)).values()}

    def has_caught_up() -> bool:
        known = {each.metadata.uid: each.metadata.resource_version for each in replica.pods.store}
        return known == there

    await eventually(has_caught_up, "the cache shows the pods as they are")


async def pods_of(lab: Lab) -> dict[str, Any]:
    return {each.metadata.name: each for each in (await lab.client.list(PODS, Selection("lab"))).items}


async def schedule(lab: Lab, replica: Replica, nodes: tuple[str, ...]) -> None:
    """As kube-scheduler does with the extender: binds whoever fits, and says of the others that they do not."""
    for pod in sorted(replica.pods.store, key=lambda each: (each.metadata.creation_timestamp, each.metadata.name)):
        if not is_waiting(pod) or pod.spec.scheduler_name != "gpu-scheduler":
            continue
        found = replica.scheduler.filter(pod, nodes)
        fitting = () if isinstance(found, Refusal) else found.fitting
        refused = await replica.scheduler.bind(pod, min(fitting)) if fitting else Refusal("no room")
        if refused is None:
            await set_status(lab, pod.metadata.name, {"phase": "Running", "startTime": lab.clock.now.isoformat()})
        elif not pod.status.conditions:
            await refuse(lab, pod.metadata.name)


async def refuse(lab: Lab, name: str) -> None:
    """What kube-scheduler writes on a pod that it could not place."""
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node will do"}
    await set_status(lab, name, {"conditions": [no_room]})


async def set_status(lab: Lab, name: str, status: Mapping[str, Any]) -> None:
    await lab.client.patch(PODS, name, MergePatch({"status": status}), "lab", subresource="status")


async def end_deleted(lab: Lab) -> None:
    """As a kubelet does: the containers have stopped, the pod goes."""
    for pod in (await pods_of(lab)).values():
        if pod.metadata.deletion_timestamp:
            try:
                only_it = DeleteOptions(uid=pod.metadata.uid, grace_seconds=0)
                await lab.client.delete(PODS, pod.metadata.name, "lab", how=only_it)
            except NotFound:
                pass


async def open_gates(lab: Lab, name: str) -> Json:
    """As whoever has set them does."""
    return await lab.client.patch(PODS, name, MergePatch({"spec": {"schedulingGates": None}}), "lab")


async def an_owner(lab: Lab) -> Json:
    """A reference to a controller that there is; of which kind it is does not matter."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    uid = (await lab.client.create(CONFIG_MAPS, body, "lab"))["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "controller": True}


async def an_opportunist(lab: Lab, replica: Replica, name: str, node: str = "n1", **spec: Any) -> Json:
    """A pod without a booking that runs with a card."""
    return await _running(
        lab, replica, await lab.pod(name, **{"limits": WHOLE, "annotations": OPPORTUNISTIC, **spec}), node
    )


async def a_booked_one(lab: Lab, replica: Replica, name: str, node: str = "n1") -> Json:
    return await _running(lab, replica, await lab.pod(name, limits=WHOLE, annotations=BOOKED), node)


async def _running(lab: Lab, replica: Replica, pod: Json, node: str) -> Json:
    assert await replica.bind(pod, node) is None
    name = pod["metadata"]["name"]
    await set_status(lab, name, {"phase": "Running", "startTime": lab.clock.now.isoformat()})
    return await lab.client.get(PODS, name, "lab")


async def a_booked_one_in_vain(lab: Lab, name: str, **spec: Any) -> Json:
    """A booked pod for which kube-scheduler has found no room."""
    await lab.pod(name, **{"limits": WHOLE, "annotations": BOOKED, **spec})
    await refuse(lab, name)
    return await lab.client.get(PODS, name, "lab")
