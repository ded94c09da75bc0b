"""Each door's rules allow what the door really calls, and nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from carrel.admission.assembly import Customs, Webhook
from carrel.admission.command import WebhookSettings
from carrel.admission.run import keep_certificates
from carrel.admission.x509 import Shown
from carrel.demo.kubelets import Kubelets
from carrel.dialects.carrel import LeaseRecord
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import BindTarget, DeleteOptions, JsonPatch
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.leader_election import Candidate, Election
from carrel.kubernetes.objects.resources import CRDS, MUTATING_WEBHOOKS, PODS, SECRETS
from carrel.kubernetes.transport import ApiRequest, ResponseLike
from carrel.leases.cluster_ledger import KnownLease
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Holder
from carrel.lifecycle.claim_status import ClaimContext, Claims
from carrel.lifecycle.hand_over import End
from carrel.lifecycle.kai_copies import KaiCopies
from carrel.lifecycle.pod_events import PodEventWriter, waiting_note
from carrel.manifests import rbac, webhooks
from carrel.node.interfaces import HandedOver
from kubernetes_in_memory import EmbeddedApi
from kubernetes_in_memory.access import ADMIN
from kubernetes_in_memory.calls import call_of
from tests.kit.agent import an_agent
from tests.kit.coexist import Kubelet, coexisting, open_for_reservations
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.kai import POD_GROUP_KIND
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import Terminator, a_booked_one_in_vain, an_opportunist, an_owner, catch_up, end_deleted

GPU_MEM = {"aliyun.com/gpu-mem": "8138"}
Right = tuple[str, str, str, str]
"""Namespace (empty: the whole cluster), API group, resource with its subresource, verb."""


class Recorder:
    """A transport that remembers which right each call needs."""

    def __init__(self, api: EmbeddedApi) -> None:
        self._api = api
        self.used: set[Right] = set()

    async def send(self, request: ApiRequest) -> ResponseLike:
        if request.path != "/version":  # which everybody may read
            call = call_of(request, self._api.kinds, ADMIN)
            resource = "/".join(filter(None, (call.kind.plural, call.target.subresource)))
            where = call.target.namespace if call.target.namespace in ("carrel", "kube-system") else ""
            self.used.add((where, call.kind.group, resource, call.verb))
        return await self._api.send(request)

    async def aclose(self) -> None:
        """The API belongs to the test."""


def given_to(door: str) -> set[Right]:
    """Through the roles that are bound to the door's ServiceAccount."""
    documents = list(rbac())
    account = {"kind": "ServiceAccount", "name": door, "namespace": "carrel"}
    bound = [each["roleRef"] for each in documents if account in each.get("subjects", ())]
    return {
        (document["metadata"].get("namespace", ""), group, resource, verb)
        for document in documents
        if any((ref["kind"], ref["name"]) == (document["kind"], document["metadata"]["name"]) for ref in bound)
        for rule in document.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


async def open_the_extender(lab: Lab, recorder: Recorder) -> None:
    """Binds two pods onto one card, then one that was replaced by another of its name: everything is given back."""
    async with lab.replica(recorder) as carrel:
        for name in ("a", "b"):
            assert await carrel.bind(await lab.pod(name, limits=GPU_MEM), "n1") is None
        # Somebody has deleted a Lease, and the extender has not heard of it yet.
        carrel.cluster_ledger.wrote(KnownLease("gpu-n2-0", "a-uid", "1", LeaseRecord("n2", 0, "GPU-n2-0")))
        replaced = await carrel.sees(await lab.pod("c", limits=GPU_MEM))
        await lab.client.delete(PODS, "c", "lab", how=DeleteOptions(grace_seconds=0))
        await lab.pod("c", limits=GPU_MEM)
        assert isinstance(await carrel.scheduler.bind(replaced, "n2"), Refusal)
        await _wake(lab, carrel)


async def open_the_agent(lab: Lab, recorder: Recorder) -> None:
    """Hands a promised card over and marks its pod; finds another pod that was given a card behind its back."""
    await lab.client.delete(GPU_NODE_STATUSES, "n1")
    async with an_agent(lab, recorder) as running, lab.replica() as extender:
        await eventually(lambda: len(extender.ledger.cards("n1")) == 2)
        assert await extender.bind(await lab.pod("a", limits=GPU_MEM), "n1") is None
        ids = await running.kubelet.healthy("aliyun.com/gpu-mem")
        await running.kubelet.allocate("aliyun.com/gpu-mem", ids[:8138])
        await eventually(lambda: ("", "", "pods", "patch") in recorder.used)
        stray = await lab.pod("stray", limits=GPU_MEM)
        await lab.client.bind(BindTarget("lab", "stray", stray["metadata"]["uid"], "n1"))
        running.kubelet.handed_over = [HandedOver("lab", "stray", "main", "aliyun.com/gpu-mem", tuple(ids[-1:]))]
        await eventually(lambda: ("", "", "events", "create") in recorder.used)
        await eventually(lambda: ("", "", "nodes/status", "patch") in recorder.used)


async def open_the_controller(lab: Lab, recorder: Recorder) -> None:
    """Is elected twice, frees a part of a card and then the rest, tells a pod, writes a claim, wakes a pod, revokes."""
    for name in ("a", "b"):
        async with lab.replica() as extender:
            assert await extender.bind(await lab.pod(name, limits=GPU_MEM), "n1") is None
    async with lab.replica(recorder) as carrel:
        for identity in ("one", "two"):
            async with Election(Client(recorder), Candidate("carrel", "carrel-controller", identity)).leading():
                pass
        for name in ("a", "b"):
            await lab.client.delete(PODS, name, "lab", how=DeleteOptions(grace_seconds=0))
            await eventually(lambda gone=name: carrel.pods.store.get(gone, "lab") is None)  # type: ignore[misc] # bound now
            assert await carrel.collector.collect()
        await _tell(lab, carrel)
        await _write_a_claim(lab, carrel)
        await _wake(lab, carrel)
        await _revoke(lab, carrel)
        await _reserve(lab, carrel)


async def open_the_webhook(lab: Lab, recorder: Recorder) -> None:
    """Makes its certificates, tells the API server whom to trust, makes a new one, and reads what it decides by."""
    for each in webhooks(for_embedded_api=True):
        await lab.client.create(MUTATING_WEBHOOKS, each)
    client, shown = Client(recorder), Shown()
    webhook = Webhook(client, None, Customs("carrel"))
    running = asyncio.gather(webhook.informers.run(), keep_certificates(client, WebhookSettings(), shown))
    try:
        await webhook.informers.wait_synced()
        await shown.wait_something()
        first = shown.pair
        away = JsonPatch([{"op": "remove", "path": "/data/tls.crt"}])
        await lab.client.patch(SECRETS, "carrel-webhook-tls", away, "carrel")
        await eventually(lambda: shown.pair != first)
    finally:
        running.cancel()


@pytest.mark.parametrize(
    ("door", "opened"),
    [
        ("carrel-extender", open_the_extender),
        ("carrel-controller", open_the_controller),
        ("carrel-webhook", open_the_webhook),
        ("carrel-agent", open_the_agent),
    ],
    ids=["extender", "controller", "webhook", "agent"],
)
async def test_a_door_may_do_what_it_does_and_nothing_else(
    door: str, opened: Callable[[Lab, Recorder], Awaitable[None]]
) -> None:
    async with a_lab([a_node("n1", cards=1), a_node("n2", cards=1)], in_real_time=True) as lab:
        await lab.client.create(CRDS, POD_GROUP_KIND)
        recorder = Recorder(lab.api)
        await opened(lab, recorder)

    assert recorder.used == given_to(door)


async def _tell(lab: Lab, carrel: Replica) -> None:
    telling, pod = PodEventWriter(carrel.cluster, lab.clock), await carrel.sees(await lab.pod("waits", limits=GPU_MEM))
    for reason in ("first", "second", "first"):
        assert await telling.tell(pod, waiting_note(Refusal(reason)))
        lab.clock.now += timedelta(minutes=1)


async def _reserve(lab: Lab, carrel: Replica) -> None:
    """Makes a reservation pod where the kubelet chooses, believes it, and writes KAI's words on who shares the card."""
    node = coexisting("n3", cards=1)
    await Kubelets(lab.client, [node], Informers(lab.client).watch(PODS), lab.clock).announce()
    await open_for_reservations(lab)
    kubelet = Kubelet(lab, node)
    async with lab.replica() as extender:
        seen = await extender.sees(await lab.pod("half", annotations={"gpu-fraction": "0.5"}))
        binding = asyncio.ensure_future(extender.scheduler.bind(seen, "n3"))
        while not binding.done():
            for name in carrel.reservations.due():
                await carrel.reservations.look_at(name)
            await kubelet.work()
            await asyncio.sleep(0.001)
        assert await binding is None
    bound = await carrel.sees(await lab.client.get(PODS, "half", "lab"))
    assert await KaiCopies(carrel.cluster, carrel.cluster_ledger, carrel.read_request).write(bound)


async def _revoke(lab: Lab, carrel: Replica) -> None:
    """Ends a bare pod and one that has a controller, each after its grace, and brings the bare one back."""
    async with lab.replica() as extender:
        await an_opportunist(lab, extender, "bare", "n1")
        await an_opportunist(lab, extender, "owned", "n2", owner=await an_owner(lab))
    for name in ("urgent", "more-urgent"):
        await a_booked_one_in_vain(lab, name)
    terminator = Terminator(carrel, grace_s=60)
    for _ in range(4):
        await catch_up(lab, carrel)
        await terminator.round()
        lab.clock.now += timedelta(minutes=1)
        await end_deleted(lab)
    assert terminator.ends == [End.HANDED_OVER]


async def _write_a_claim(lab: Lab, carrel: Replica) -> None:
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "c"}}
    await lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 1}}}, "lab")
    claim = await eventually(lambda: carrel.claims.store.get("c", "lab"))
    assert claim is not None
    known = ClaimContext(carrel.cluster_ledger, lambda _: [], lambda _: None, carrel.options.dialect_options)
    assert await Claims(carrel.cluster, known).write(claim)


async def _wake(lab: Lab, carrel: Replica) -> None:
    sleeps = await lab.pod("sleeps", limits=GPU_MEM)
    carrel.wake([Holder(sleeps["metadata"]["uid"], "lab/sleeps")])
    version = sleeps["metadata"]["resourceVersion"]
    await eventually(
        lambda: (pod := carrel.pods.store.get("sleeps", "lab")) and pod.metadata.resource_version != version
    )
