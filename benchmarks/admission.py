"""The webhook over HTTP, beside a bare ASGI app that only decodes and echoes the same review.

The reviews are of a notebook as JupyterHub spawns it, with volumes, variables and tolerations. Its user has a booking,
and the webhook decides from its own ledger of some hundred nodes. No TLS on either side.

- Server CPU per review: the least of many short rounds, alternating with the bare app. Other work on the machine hardly
  changes it, so this is the figure to compare.
- p99 at 200 reviews/s: over *all* reviews of all runs, from when each was due, on one connection. Other work on the
  machine changes it: so the p99 of the bare app is shown too, and that of the fastest run, nearest to an idle machine.
"""

import asyncio
import base64
import gc
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.extender import Server, a_server, make_bare
from benchmarks.measuring import Figure
from carrel.admission.assembly import AdmissionWebhook
from carrel.admission.options import AdmissionOptions
from carrel.cluster.options import ClusterOptions
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import BOOKINGS, write_booking
from carrel.dialects.seal import Seal
from carrel.http.asgi import AsgiApp
from carrel.ids import BookingId, GpuUuid, NodeName, PersonId
from carrel.kubernetes.client import Client
from carrel.kubernetes.objects.resources import CRDS, NAMESPACES, PODS
from carrel.kubernetes.reflector import Informers
from carrel.ledger.coverage import Entitlement
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.manifests import crds
from kubernetes_in_memory import EmbeddedApi
from testbed.kubelets import SimulatedKubelets

ROUNDS, CALLS, PEOPLE = 40, 50, 25
NODES, BOOKINGS_MADE = 250, 1_000
MODEL = "NVIDIA-RTX-A6000"
PER_SECOND, SECONDS, RUNS = 200, 2, 8
"""Several short runs: another process that takes the core for a moment delays everything that comes after it."""
SPAWNER = "system:serviceaccount:jhub:hub"


def make_webhook() -> AsgiApp:
    with ThreadPoolExecutor() as pool:  # the server's own loop runs in this thread
        webhook = pool.submit(lambda: asyncio.run(_webhook())).result()
    gc.collect()
    gc.freeze()  # as the process does when it has read the cluster
    return webhook.app()


async def _webhook() -> AdmissionWebhook:
    """It has read a cluster on the embedded API once, and watches nothing."""
    client, now = Client(EmbeddedApi()), datetime.now(UTC)
    for crd in crds():
        await client.create(CRDS, crd)
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}})
    nodes = [Node(NodeName(f"n{number}"), tuple(_gpus(f"n{number}"))) for number in range(NODES)]
    await SimulatedKubelets(client, nodes, Informers(client).watch(PODS), lambda: now).announce()
    day = timedelta(days=1)
    for person in range(BOOKINGS_MADE):
        name = f"person{person}@lab.example"
        booking = Entitlement(BookingId(f"b{person}"), frozenset({PersonId(name)}), MODEL, 1, now - day, now + day)
        await client.create(BOOKINGS, write_booking(booking, name, version=1))
    state = ClusterState(client, ClusterOptions(seal=Seal((b"key",))))
    webhook = AdmissionWebhook(state, None, AdmissionOptions(spawners=frozenset({SPAWNER})))
    await webhook.informers.read_once()
    webhook.informers = _Synced()  # type: ignore[assignment] # nothing is watched
    return webhook


def _gpus(node: str) -> Iterator[Gpu]:
    for index in range(8):
        yield Gpu(
            uuid=GpuUuid(f"GPU-{node}-{index}"), node=NodeName(node), index=index, memory=MiB(49_140), model=MODEL
        )


class _Synced:
    is_synced = True


def review(person: int, limits: Mapping[str, str]) -> bytes:
    env = [{"name": f"JUPYTERHUB_VARIABLE_{number}", "value": f"value-{number}" * 3} for number in range(25)]
    container = {
        "name": "notebook",
        "image": "registry.example/notebook:1",
        "args": ["jupyterhub-singleuser"],
        "env": env,
        "ports": [{"name": "notebook-port", "containerPort": 8888, "protocol": "TCP"}],
        "resources": {"limits": {"cpu": "4", "memory": "16Gi", **limits}, "requests": {"cpu": "1", "memory": "4Gi"}},
        "volumeMounts": [{"name": f"volume-{number}", "mountPath": f"/data/{number}"} for number in range(6)],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    pod: dict[str, Any] = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"jupyter-person-{person}",
            "namespace": "lab",
            "creationTimestamp": None,
            "labels": {"app": "jupyterhub", "hub.jupyter.org/username": f"person-{person:02x}-40lab-2eexample"},
            "annotations": {"hub.jupyter.org/username": f"person{person}@lab.example"},
        },
        "spec": {
            "containers": [container],
            "initContainers": [{"name": "block-cloud-metadata", "image": "registry.example/block:1", "resources": {}}],
            "volumes": [
                {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": f"claim-{number}"}}
                for number in range(6)
            ],
            "tolerations": [{"key": f"taint-{number}", "operator": "Exists"} for number in range(4)],
            "schedulerName": "default-scheduler",
            "priority": 0,
        },
    }
    request = {
        "uid": f"705ab4f5-6393-11e8-b7cc-{person:012}",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "lab",
        "operation": "CREATE",
        "userInfo": {"username": SPAWNER, "groups": ["system:serviceaccounts", "system:authenticated"]},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
    }
    question = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(question, separators=(",", ":")).encode()


def measure() -> Iterator[Figure]:
    booked = [review(person, {"nvidia.com/gpu": "1"}) for person in range(PEOPLE)]
    plain = [review(person, {}) for person in range(PEOPLE)]
    with a_server(make_bare) as bare, a_server(make_webhook) as webhook:
        patch = json.loads(webhook.ask(booked[0], "/mutate"))["response"]["patch"]
        assert b'"booked"' in base64.b64decode(patch)
        for name, bodies in (("a booked pod", booked), ("a pod without a GPU", plain)):
            turns = [(_cpu_per_call(webhook, bodies), _cpu_per_call(bare, bodies)) for _ in range(ROUNDS)]
            ours, theirs = (min(turn[side] for turn in turns) for side in (0, 1))
            yield Figure(f"server CPU per review: {name}", ours * 1e3, "ms")
            yield Figure("  of the bare app", theirs * 1e3, "ms")
            yield Figure("  ratio", ours / theirs, "×", 3.0)
        for name, server, goal in (("the bare app", bare, None), ("booked pods", webhook, 20.0)):
            runs = [list(_paced(server, booked)) for _ in range(RUNS)]
            everything = [delay for run in runs for delay in run]
            yield Figure(f"p99 of {len(everything)} reviews at {PER_SECOND}/s: {name}", _p99(everything), "ms", goal)
            yield Figure(f"  of the calmest {SECONDS} s", min(map(_p99, runs)), "ms")


def _p99(seconds: list[float]) -> float:
    """In milliseconds."""
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1e3


def _cpu_per_call(server: Server, bodies: list[bytes]) -> float:
    start = server.cpu_s()
    for number in range(CALLS):
        server.ask(bodies[number % len(bodies)], "/mutate")
    return (server.cpu_s() - start) / CALLS


def _paced(server: Server, bodies: list[bytes]) -> Iterator[float]:
    """Seconds from when a review was due to its answer, with the time that it waited behind a slow one."""
    begin = time.perf_counter()
    for number in range(PER_SECOND * SECONDS):
        due = begin + number / PER_SECOND
        time.sleep(max(0.0, due - time.perf_counter()))
        server.ask(bodies[number % len(bodies)], "/mutate")
        yield time.perf_counter() - due
