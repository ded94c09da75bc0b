"""The RBAC rules of each component allow the calls that it really makes, and no others."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from carrel.admission.assembly import AdmissionWebhook
from carrel.admission.entry_point import WebhookSettings
from carrel.admission.options import AdmissionOptions
from carrel.admission.run import keep_asked, renew_certificates
from carrel.admission.served_certificate import ServedCertificate
from carrel.cluster.configuration_record import (
    CHANGES,
    ConfigurationWatch,
    Reads,
    body_of,
    ensure_changes,
    first_configuration,
)
from carrel.cluster.record.known_lease import KnownLease
from carrel.cluster.runtime_class import RuntimeClasses
from carrel.cluster.state import ClusterState
from carrel.configuration.current import CurrentConfiguration
from carrel.dialects.carrel import SHADOW
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES
from carrel.dialects.protected_keys import Writer
from carrel.ids import GpuUuid, PodUid
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import BindTarget, DeleteOptions, JsonPatch
from carrel.kubernetes.leader_election import Candidate, Election
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import CONFIG_MAPS, CRDS, MUTATING_WEBHOOKS, PODS, SECRETS, Resource
from carrel.kubernetes.reflector import Informers
from carrel.kubernetes.transport import ApiRequest, ResponseLike
from carrel.ledger.placement import Placement
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Request
from carrel.ledger.shares import Holder, HolderKind
from carrel.lifecycle.booking_enquiries import BookingEnquiries
from carrel.lifecycle.configuring import Configuring
from carrel.lifecycle.freeing.left_shadows import LeftShadows
from carrel.lifecycle.handing_over.hand_over import HandOverResult
from carrel.lifecycle.metrics import ControllerMetrics
from carrel.lifecycle.reporting.claim_status import ClaimStatusWriter
from carrel.lifecycle.reporting.pod_events import PodEventWriter, waiting_note
from carrel.lifecycle.reservations.kai_metadata import KaiMetadataWriter
from carrel.manifests import rbac, webhooks
from carrel.node.interfaces import AllocatedDevices
from carrel.resource_claims.objects import RESOURCE_CLAIMS
from kubernetes_in_memory import EmbeddedApi
from kubernetes_in_memory.auth import ADMIN
from kubernetes_in_memory.request_info import call_of
from testbed.kubelets import SimulatedKubelets
from tests.kit.agent import an_agent
from tests.kit.bookings_elsewhere import BookingsElsewhere
from tests.kit.coexist import Kubelet, coexisting, create_reservation_namespace
from tests.kit.definitions import definition
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, N2, N3, a_node
from tests.kit.kai import POD_GROUP_KIND
from tests.kit.key_writers import written_by
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import (
    OF_A_HUB,
    TierController,
    a_service_of,
    an_opportunistic_pod,
    an_owner,
    an_unschedulable_booked_pod,
    catch_up,
    end_deleted,
    schedule,
)

GPU_MEM = {"aliyun.com/gpu-mem": "8138"}
Right = tuple[str, str, str, str]
"""Namespace (empty: the whole cluster), API group, resource with its subresource, verb."""
MAKERS = (
    ("apps", "v1", "replicasets", "ReplicaSet"),
    ("apps", "v1", "statefulsets", "StatefulSet"),
    ("batch", "v1", "jobs", "Job"),
    ("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"),
    ("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob"),
    ("kubeflow.org", "v2beta1", "mpijobs", "MPIJob"),
)
NOT_SERVED: Right = ("", "scheduling.k8s.io", "podgroups", "get")
"""Kubernetes' own PodGroup says how large a gang is. The embedded API does not serve it."""


class Recorder:
    """A transport that records which permission each call needs."""

    def __init__(self, api: EmbeddedApi) -> None:
        self._api = api
        self.used: set[Right] = set()
        self.keys: set[str] = set()
        """Annotations and labels that were written on pods, also with their Bindings."""

    async def send(self, request: ApiRequest) -> ResponseLike:
        if request.path != "/version":  # which everybody may read
            call = call_of(request, self._api.kinds, ADMIN)
            resource = "/".join(filter(None, (call.kind.plural, call.target.subresource)))
            where = call.target.namespace if call.target.namespace in ("carrel", "kube-system") else ""
            self.used.add((where, call.kind.group, resource, call.verb))
            if resource in ("pods", "pods/binding") and request.method in ("PATCH", "POST") and request.body:
                self._note_keys(json.loads(request.body), is_new=resource == "pods" and request.method == "POST")
        return await self._api.send(request)

    def _note_keys(self, written: Any, is_new: bool) -> None:
        """What a pod is created with is not looked at: only the controller creates pods."""
        metadata = {} if is_new else written.get("metadata") or {}
        self.keys |= {key for group in ("annotations", "labels") for key in metadata.get(group) or ()}

    async def aclose(self) -> None:
        """The test closes the API."""


def given_to(account_name: str) -> set[Right]:
    """By the roles that are bound to the component's ServiceAccount."""
    documents = list(rbac())
    account = {"kind": "ServiceAccount", "name": account_name, "namespace": "carrel"}
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
    """Binds two pods on one GPU, then one that was replaced by another of its name: everything is given back."""
    async with lab.replica(recorder) as replica:
        for name in ("a", "b"):
            assert await replica.bind(await lab.pod(name, limits=GPU_MEM), "n1") is None
        # Somebody has deleted a Lease, and the extender's cache still has it.
        replica.cluster_ledger.lease_written(
            KnownLease("gpu-n2-0", "a-uid", "1", LeaseRecord(N2, 0, GpuUuid("GPU-n2-0")))
        )
        replaced = await replica.sees(await lab.pod("c", limits=GPU_MEM))
        await lab.client.delete(PODS, "c", "lab", how=DeleteOptions(grace_seconds=0))
        await lab.pod("c", limits=GPU_MEM)
        assert isinstance(await replica.scheduler.bind(replaced, N2), Refusal)
        await _wake(lab, replica)
        await _nominate(lab, replica)
        await _ask_makers(lab, replica)


async def open_the_agent(lab: Lab, recorder: Recorder) -> None:
    """Hands over a promised GPU and marks its pod; finds a pod that got a GPU without Carrel."""
    await lab.client.delete(GPU_NODE_STATUSES, "n1")
    async with an_agent(lab, recorder) as running, lab.replica() as extender:
        await eventually(lambda: len(extender.ledger.entries(N1)) == 2)
        assert await extender.bind(await lab.pod("a", limits=GPU_MEM), "n1") is None
        ids = await running.kubelet.healthy("aliyun.com/gpu-mem")
        await running.kubelet.allocate("aliyun.com/gpu-mem", ids[:8138])
        await eventually(lambda: ("", "", "pods", "patch") in recorder.used)
        stray = await lab.pod("stray", limits=GPU_MEM)
        await lab.client.bind(BindTarget("lab", "stray", stray["metadata"]["uid"], "n1"))
        running.kubelet.allocated_devices = [
            AllocatedDevices("lab", "stray", "main", "aliyun.com/gpu-mem", tuple(ids[-1:]))
        ]
        await eventually(lambda: ("", "", "events", "create") in recorder.used)
        await eventually(lambda: ("", "", "nodes/status", "patch") in recorder.used)


async def open_the_controller(lab: Lab, recorder: Recorder) -> None:
    """Is elected twice, frees a part of a GPU and then the rest, writes an Event and a claim, wakes a pod, revokes."""
    for name in ("a", "b"):
        async with lab.replica() as extender:
            assert await extender.bind(await lab.pod(name, limits=GPU_MEM), "n1") is None
    async with lab.replica(recorder) as replica:
        for identity in ("one", "two"):
            async with Election(Client(recorder), Candidate("carrel", "carrel-controller", identity)).leading():
                pass
        for name in ("a", "b"):
            await lab.client.delete(PODS, name, "lab", how=DeleteOptions(grace_seconds=0))
            await eventually(lambda gone=name: replica.pods.store.get(gone, "lab") is None)  # type: ignore[misc] # bound now
            assert await replica.collector.collect()
        await _record_the_configuration(lab, replica)
        await _tell(lab, replica)
        await _write_a_claim(lab, replica)
        await _free_a_resource_claim(lab, replica)
        await _remove_a_shadow(lab, replica)
        await _wake(lab, replica)
        await _revoke(lab, replica)
        await _reserve(lab, replica)
        await _ask_elsewhere(lab, replica)
        await _ask_makers(lab, replica)
        await _watch_runtime_classes(recorder)


async def _watch_runtime_classes(recorder: Recorder) -> None:
    """For reservation pods."""
    informers = Informers(Client(recorder))
    RuntimeClasses(informers)
    running = asyncio.ensure_future(informers.run())
    try:
        watched = ("", "node.k8s.io", "runtimeclasses", "watch")
        await eventually(lambda: watched in recorder.used)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def open_the_webhook(lab: Lab, recorder: Recorder) -> None:
    """Makes its certificates, writes authority and rules, renews a certificate, and reads what it decides with."""
    for each in webhooks(for_embedded_api=True):
        del each["webhooks"][0]["rules"]
        await lab.client.create(MUTATING_WEBHOOKS, each)
    client, shown = Client(recorder), ServedCertificate()
    webhook = AdmissionWebhook(ClusterState(client), None, AdmissionOptions())
    webhook.answers.set()
    running = asyncio.gather(
        webhook.informers.run(),
        renew_certificates(client, WebhookSettings(), shown),
        keep_asked(client, WebhookSettings().configuration, webhook.answers),
    )
    try:
        await webhook.informers.wait_synced()
        await shown.wait_loaded()
        first = shown.pair
        away = JsonPatch([{"op": "remove", "path": "/data/tls.crt"}])
        await lab.client.patch(SECRETS, "carrel-webhook-tls", away, "carrel")
        await eventually(lambda: shown.pair != first)
    finally:
        running.cancel()


async def follow_the_configuration(lab: Lab, recorder: Recorder) -> None:
    """Reads it as every component does when it starts, and watches it."""
    client = Client(recorder)
    watch = ConfigurationWatch(
        client, "carrel", CurrentConfiguration(await first_configuration(client, "carrel")), Reads([])
    )
    running = asyncio.ensure_future(watch.run())
    try:
        await eventually(lambda: ("carrel", "", "configmaps", "watch") in recorder.used)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def _record_the_configuration(lab: Lab, replica: Replica) -> None:
    """Makes the object for what people change, records what is in force, and what somebody changed."""
    configuring = Configuring(replica, ControllerMetrics(lambda: True))
    await ensure_changes(replica.cluster, "carrel")
    assert await configuring.round()
    changed = {"carrel.yaml": "tiers: {revocationGrace: 30s}"}
    await lab.client.update(CONFIG_MAPS, body_of(CHANGES, "carrel", changed))
    record = await configuring.round()
    assert record is not None and record.configuration().tiers.revocation_grace == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("account_name", "run"),
    [
        ("carrel-extender", open_the_extender),
        ("carrel-controller", open_the_controller),
        ("carrel-webhook", open_the_webhook),
        ("carrel-agent", open_the_agent),
    ],
    ids=["extender", "controller", "webhook", "agent"],
)
async def test_a_component_may_do_what_it_does_and_nothing_else(
    account_name: str, run: Callable[[Lab, Recorder], Awaitable[None]]
) -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)], in_real_time=True) as lab:
        await lab.client.create(CRDS, POD_GROUP_KIND)
        recorder = Recorder(lab.api)
        await follow_the_configuration(lab, recorder)
        await run(lab, recorder)

    assert recorder.used == given_to(account_name) - {NOT_SERVED}
    writable = written_by(Writer(account_name)) if account_name != "carrel-webhook" else frozenset()
    prefixes = tuple(key.removesuffix("*") for key in writable if key.endswith("*"))
    assert {key for key in recorder.keys if key not in writable and not key.startswith(prefixes)} == set()
    assert bool(recorder.keys) is (account_name != "carrel-webhook")


async def _tell(lab: Lab, replica: Replica) -> None:
    telling, pod = (
        PodEventWriter(replica.cluster, lab.clock),
        await replica.sees(await lab.pod("waits", limits=GPU_MEM)),
    )
    for reason in ("first", "second", "first"):
        assert await telling.tell(pod, waiting_note(Refusal(reason)))
        lab.clock.now += timedelta(minutes=1)


async def _reserve(lab: Lab, replica: Replica) -> None:
    """Creates a reservation pod where the kubelet chooses, records its GPU, and writes KAI's labels on the pod."""
    node = coexisting("n3", gpus=1)
    await SimulatedKubelets(lab.client, [node], Informers(lab.client).watch(PODS), lab.clock).announce()
    await create_reservation_namespace(lab)
    kubelet = Kubelet(lab, node)
    async with lab.replica() as extender:
        seen = await extender.sees(await lab.pod("half", annotations={"gpu-fraction": "0.5"}))
        binding = asyncio.ensure_future(extender.scheduler.bind(seen, N3))
        while not binding.done():
            for name in replica.reservations.due():
                await replica.reservations.reconcile_slot(name)
            await kubelet.work()
            await asyncio.sleep(0.001)
        assert await binding is None
    bound = await replica.sees(await lab.client.get(PODS, "half", "lab"))
    assert await KaiMetadataWriter(replica).write(bound)


async def _revoke(lab: Lab, replica: Replica) -> None:
    """Ends a notebook and a pod with a controller, each after its grace, and creates the notebook again."""
    async with lab.replica() as extender:
        await a_service_of(lab, await an_opportunistic_pod(lab, extender, "bare", "n1", labels=OF_A_HUB))
        await an_opportunistic_pod(lab, extender, "owned", "n2", owner=await an_owner(lab))
    for name in ("urgent", "more-urgent"):
        await an_unschedulable_booked_pod(lab, name)
    controller = TierController(replica, grace_s=60)
    for _ in range(4):
        await catch_up(lab, replica)
        await controller.round()
        lab.clock.now += timedelta(minutes=1)
        await end_deleted(lab)
    assert controller.results == [HandOverResult.HANDED_OVER]
    async with lab.replica() as extender:
        await schedule(lab, extender, (N1, N2))
    await catch_up(lab, replica)
    await controller.round()  # how much of the booking is used now


async def _ask_elsewhere(lab: Lab, replica: Replica) -> None:
    """A booking that was made elsewhere begins, is extended, and is cancelled."""
    service = BookingsElsewhere()
    enquiries = BookingEnquiries(replica, service)
    user = {"carrel.dev/user": "ada@lab.example"}
    await replica.sees(await lab.pod("asked", limits=GPU_MEM, annotations=user))
    for hours in (1, 2, None):
        service.book("ada@lab.example", lab.clock.now + timedelta(hours=hours) if hours else None)
        await enquiries.round()
        # The other one is the booker's.
        await eventually(lambda count=1 + (hours is not None): len(replica.bookings.store) == count)  # type: ignore[misc] # bound now
        lab.clock.now += timedelta(minutes=1)


async def _ask_makers(lab: Lab, replica: Replica) -> None:
    """Reads everything that may say how many pods a gang has."""
    for number, (group, version, plural, kind) in enumerate(MAKERS):
        resource: Resource[Any] = Resource(Object, group, version, plural, kind)
        if group not in ("apps", "batch"):
            await lab.client.create(CRDS, definition(resource))
        body = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": f"maker-{number}"}, "spec": {}}
        made = await lab.client.create(resource, body, "lab")
        owner = {key: body[key] for key in ("apiVersion", "kind")} | {"name": f"maker-{number}", "controller": True}
        notes = {"gpu-fraction": "0.1", "pod-group-name": f"gang-{number}"}
        pod = await lab.pod(f"made-{number}", annotations=notes, owner={**owner, "uid": made["metadata"]["uid"]})
        seen = await replica.sees(pod)
        replica.pod_facts.asked(seen)
    await replica.gang_sizes.wait_looked_up()


async def _write_a_claim(lab: Lab, replica: Replica) -> None:
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "c"}}
    await lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 1}}}, "lab")
    claim = await eventually(lambda: replica.claims.store.get("c", "lab"))
    assert claim is not None
    assert await ClaimStatusWriter(replica).write(claim)


async def _free_a_resource_claim(lab: Lab, replica: Replica) -> None:
    """Claims are not counted any more, and one that was holds a GPU."""
    gone = Holder(PodUid("a-claim"), "lab", "train", HolderKind.CLAIM)
    gpu = next(entry.gpu for entry in replica.ledger.entries(N2))
    assert await replica.lease_writer.take(Placement(N2, (gpu,), Request(1, WHOLE)), gone) is None
    replica.lease_writer.finish_bind(PodUid("a-claim"))
    assert [each.why for each in await replica.collector.collect()] == ["the claim is gone"]


async def _remove_a_shadow(lab: Lab, replica: Replica) -> None:
    metadata = {"name": "left", "labels": {SHADOW: "true"}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": {}}
    await lab.client.create(RESOURCE_CLAIMS, body, "carrel")
    removal = LeftShadows(replica)
    assert [await removal.is_done() for _ in range(2)] == [False, True]


async def _nominate(lab: Lab, replica: Replica) -> None:
    planned = await lab.pod("planned", limits=GPU_MEM)
    replica.nominations.nominate({Holder(planned["metadata"]["uid"], "lab", "planned"): N1})
    await eventually(lambda: replica.nominations.are_written)
    assert (await lab.client.get(PODS, "planned", "lab"))["status"]["nominatedNodeName"] == "n1"


async def _wake(lab: Lab, replica: Replica) -> None:
    sleeps = await lab.pod("sleeps", limits=GPU_MEM)
    replica.wake([Holder(sleeps["metadata"]["uid"], "lab", "sleeps")])
    version = sleeps["metadata"]["resourceVersion"]
    await eventually(
        lambda: (pod := replica.pods.store.get("sleeps", "lab")) and pod.metadata.resource_version != version
    )
