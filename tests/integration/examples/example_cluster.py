"""The cluster of `examples/cluster.yaml` on the embedded API, with the real webhook and the real extender over HTTP.

`SimulatedScheduler` takes the place of kube-scheduler; `TierController` takes GPUs back.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from carrel.admission.assembly import AdmissionWebhook
from carrel.admission.options import AdmissionOptions
from carrel.cluster.options import ClusterOptions
from carrel.cluster.pod_progress import is_waiting
from carrel.cluster.state import ClusterState
from carrel.cluster_file import read_cluster
from carrel.demo.component_processes import WithToken
from carrel.demo.system import SimulatedScheduler
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.http.serving import Address, serving
from carrel.ids import NodeName
from carrel.kubernetes.client import Client
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import CRDS, MUTATING_WEBHOOKS, NAMESPACES, PODS, PRIORITY_CLASSES, Resource
from carrel.kubernetes.reflector import Informers
from carrel.ledger.gpus import Gpu
from carrel.manifests import crds, priority_classes, webhooks
from carrel.scheduling.assembly import SchedulerOptions, extender_app, handlers_on
from kubernetes_in_memory import EmbeddedApi, Settings
from kubernetes_in_memory.auth import UserInfo, service_account
from testbed.kubelets import SimulatedKubelets
from tests.kit.eventually import eventually
from tests.kit.lab import DAY, Clock, Lab, Replica
from tests.kit.tiers import TierController, catch_up, end_deleted, set_status

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS: Resource[Any] = Resource(Object, "batch", "v1", "jobs", "Job")
KINDS: Mapping[str, Resource[Any]] = {each.kind: each for each in (PODS, GPU_CLAIMS, JOBS)}

ALICE, BOB, HUB = "alice@lab.example", "bob@lab.example", "jupyterhub"
USERS = {ALICE: UserInfo(ALICE), BOB: UserInfo(BOB), HUB: service_account("jhub", "hub")}
"""Bob has a booking of one GPU, of any model, and Alice one that starts tomorrow."""

Json = dict[str, Any]
FOR_ALL = SchedulerOptions(schedulers=None)
"""The simulated scheduler places the pods of the default scheduler too."""


def documents(file: str) -> list[Json]:
    return list(yaml.safe_load_all((EXAMPLES / file).read_text()))


@dataclass
class ExampleCluster:
    lab: Lab
    replica: Replica
    tiers: TierController
    scheduler: SimulatedScheduler
    until: datetime
    """When Bob's booking ends."""
    extender: str
    """Its address."""
    errors: list[str] = field(default_factory=list)

    async def apply(self, file: str, user: str = ALICE) -> list[Json]:
        """Creates what the file holds, as this user; returns the pods. Raises `ClusterError` if one is refused."""
        client = Client(WithToken(self.lab.api, user))
        made = [await self._create(client, each) for each in documents(file)]
        return [each for each in made if each["kind"] == "Pod"]

    async def pod_of_job(self, job: str) -> Json:
        """What the Job controller creates next. Its namespace belongs to Alice."""
        owner = await self.lab.client.get(JOBS, job, "lab")
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": owner["metadata"]["uid"]}
        template = owner["spec"]["template"]
        notes = template.get("metadata", {}).get("annotations", {})
        metadata = {
            "generateName": f"{job}-",
            "annotations": notes,
            "ownerReferences": [{**reference, "controller": True}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        return await self._create(self.lab.client, pod)

    async def _create(self, client: Client, document: Json) -> Json:
        kind = document["kind"]
        assert kind in KINDS, f"this cluster makes {', '.join(KINDS)} of an example, not {kind}"
        made = await client.create(KINDS[kind], document, "lab")
        if document["kind"] == "GpuClaim":
            await eventually(lambda: self.replica.claims.store.get(made["metadata"]["name"], "lab") is not None)
        return made

    async def schedule(self) -> dict[str, str]:
        """As kube-scheduler does, until every pod is bound or waits. Returns why the pods wait, by name."""
        await catch_up(self.lab, self.replica)
        pods = [pod for pod in self.replica.pods.store if is_waiting(pod) and pod.spec.scheduler_name]
        waiting = {}
        for pod in pods:
            name = pod.metadata.name
            document = await self.lab.client.get(PODS, name, "lab")
            why = await self.scheduler.attempt(
                document, self.replica.eligible_nodes.nodes_for(pod), lambda node, error: self._note(error)
            )
            if why:
                waiting[name] = why
                unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                await set_status(self.lab, name, {"conditions": [unschedulable]})
        uids = [pod.metadata.uid for pod in pods]
        await eventually(lambda: not any(self.scheduler.is_binding(uid) for uid in uids), "the binds end")
        assert not self.errors
        return waiting

    def _note(self, error: str) -> None:
        if error:
            self.errors.append(error)

    async def control(self) -> None:
        """One round of the controller, and of the kubelets that end deleted pods."""
        await catch_up(self.lab, self.replica)
        await self.tiers.round()
        await end_deleted(self.lab)
        await catch_up(self.lab, self.replica)

    async def pod(self, name: str) -> Json:
        return await self.lab.client.get(PODS, name, "lab")

    async def held(self, pod: Json) -> dict[str, int | None]:
        """Lease → MiB that the pod holds; None: the whole GPU."""
        uid = pod["metadata"]["uid"]
        return {lease: shares[uid] for lease, shares in (await self.lab.held()).items() if uid in shares}

    def gpu(self, lease: str) -> Gpu:
        """The GPU that the Lease is for."""
        node, _, index = lease.removeprefix("gpu-").rpartition("-")
        return next(entry.gpu for entry in self.replica.ledger.entries(NodeName(node)) if entry.gpu.index == int(index))


@asynccontextmanager
async def an_example_cluster() -> AsyncIterator[ExampleCluster]:
    urls: dict[str, str] = {}
    clock = Clock(datetime.now(UTC).replace(microsecond=0))
    settings = Settings(tokens=USERS, clock=clock, service_address=lambda namespace, name, port: urls["webhook"])
    lab = Lab(EmbeddedApi(settings), clock)
    options = AdmissionOptions(spawners=frozenset({USERS[HUB].name}))
    webhook = AdmissionWebhook(ClusterState(lab.client, ClusterOptions(now=lab.clock)), None, options)
    await _install(lab)
    await lab.book(BOB, name="booking-bob")
    await lab.book(ALICE, name="booking-alice", start=lab.clock.now + DAY, end=lab.clock.now + 2 * DAY)
    watching = asyncio.ensure_future(webhook.informers.run())
    try:
        await webhook.informers.wait_synced()
        async with (
            lab.replica() as replica,
            serving(webhook.app(), Address()) as urls["webhook"],
            serving(extender_app(handlers_on(replica, replica.scheduler, FOR_ALL)), Address()) as extender,
            aiohttp.ClientSession() as session,
            asyncio.TaskGroup() as binds,
        ):
            scheduler = SimulatedScheduler(session, binds, extender)
            yield ExampleCluster(lab, replica, TierController(replica), scheduler, lab.clock.now + DAY, extender)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await lab.api.aclose()


async def _install(lab: Lab) -> None:
    for crd in crds():
        await lab.client.create(CRDS, crd)
    for priority in priority_classes():
        await lab.client.create(PRIORITY_CLASSES, priority)
    for name in ("carrel", "lab"):
        metadata = {"name": name, "annotations": {"owner": ALICE}}
        await lab.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    for configuration in webhooks(for_embedded_api=True):
        await lab.client.create(MUTATING_WEBHOOKS, configuration)
    nodes = read_cluster((EXAMPLES / "cluster.yaml").read_text(), "cluster.yaml")
    await SimulatedKubelets(lab.client, nodes, Informers(lab.client).watch(PODS), lab.clock).announce()
