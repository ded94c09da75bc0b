"""The extender over HTTP on 5,000 nodes × 8 GPUs, of which kube-scheduler asks about 500 for a pod, beside a bare ASGI
app that only decodes and echoes the same body.

Each runs in a process of its own, on the same server, and the same client calls them in turns; compared is the CPU time
of the server's process. Before each round of calls, as many pods get a GPU as there are calls, as happens while pods
are being bound; what that costs the ledger is not counted, what it costs the answers is.
"""

import asyncio
import gc
import http.client
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import uvloop

from benchmarks.core import cluster, shares
from benchmarks.measuring import Figure
from carrel.cluster.state import ClusterState
from carrel.http.asgi import AsgiApp, Receive, Scope, Send
from carrel.http.post_routes import BodyLimit, BodyMemory, JsonReply, PostRoute, post_routes
from carrel.http.serving import Address, serving
from carrel.ids import GpuUuid, PodUid
from carrel.kubernetes.client import Client
from carrel.ledger.gpus import MiB
from carrel.ledger.shares import Holder, Share
from carrel.scheduling.assembly import extender_app, handlers_on, scheduler_on
from kubernetes_in_memory import EmbeddedApi

ROUNDS, CALLS = 60, 20
"""Many short rounds: on a busy machine at least some of them are not disturbed."""
CHANGE = "/change"
SAMPLE = 500
"""So many of 5,000 nodes kube-scheduler looks at by default."""
ASKED = {
    "fits on every node": {"aliyun.com/gpu-mem": "8138"},
    "fits on half of the nodes": {"aliyun.com/gpu-mem": "70000"},
    "fits nowhere": {"nvidia.com/gpu": "4"},
}


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    answer = msgspec.json.encode(msgspec.json.decode(body))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def busy_extender() -> AsgiApp:
    state = ClusterState(Client(EmbeddedApi()))
    ledger = state.ledger
    for node in cluster():
        ledger.set_node(node)
    ledger.restore(shares())
    state.informers = _Synced()  # type: ignore[assignment] # the ledger was filled by hand
    gc.collect()
    gc.freeze()  # as the component does when it is ready
    turn = 0

    def change(body: bytes) -> JsonReply:
        nonlocal turn
        turn += 1
        for node in range(turn * 7, turn * 7 + CALLS):
            ledger.restore([Share(Holder(PodUid(f"uid-new-{node}")), GpuUuid(f"GPU-{node % 5_000:04}-7"), MiB(turn))])
        return JsonReply(200, b"{}")

    app = extender_app(handlers_on(state, scheduler_on(state)))
    app.routes.extend(post_routes({CHANGE: PostRoute(change, BodyLimit(1024, "Error", BodyMemory(1024)))}))
    return app


class _Synced:
    is_synced = True

    def silences(self) -> dict[str, float]:
        return {}


# --- a server in a process of its own --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    process: int
    connection: http.client.HTTPConnection

    def ask(self, body: bytes, path: str = "/carrel/filter") -> bytes:
        self.connection.request("POST", path, body)
        return self.connection.getresponse().read()

    def cpu_s(self) -> float:
        """User and system time of the whole process."""
        return int(Path(f"/proc/{self.process}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def a_server(make: Callable[[], AsgiApp]) -> Iterator[Server]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(make, theirs), daemon=True)
    process.start()
    port = ours.recv()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    assert process.pid is not None
    try:
        yield Server(process.pid, connection)
    finally:
        connection.close()
        process.terminate()
        process.join()


def _serve(make: Callable[[], AsgiApp], told: Connection) -> None:
    async def run() -> None:
        async with serving(make(), Address()) as url:
            told.send(int(url.rpartition(":")[2]))
            await asyncio.Event().wait()

    uvloop.run(run())


_pods = itertools.count()


def make_bare() -> AsgiApp:
    return bare


def question(limits: dict[str, str], nodes: int, order: Random | None = None) -> bytes:
    pod: dict[str, Any] = {
        "metadata": {"name": "train", "namespace": "lab", "uid": "uid-train", "labels": {"app": "train"}},
        "spec": {"containers": [{"name": "main", "image": "train:1", "resources": {"limits": limits}}]},
    }
    names = [f"node-{number:04}" for number in range(nodes)]
    if order is not None:
        order.shuffle(names)
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


def cpu_per_call(server: Server, bodies: Sequence[bytes]) -> float:
    """Each call is about another pod, as kube-scheduler's are: a pod that asks again has not been bound."""
    server.ask(b"{}", CHANGE)
    bodies = [body.replace(b"uid-train", b"uid-asks-%d" % next(_pods)) for body in bodies]
    start = server.cpu_s()
    for body in bodies:
        server.ask(body)
    return (server.cpu_s() - start) / len(bodies)


def measure() -> Iterator[Figure]:
    with a_server(make_bare) as plain, a_server(busy_extender) as extender:
        for name, limits in ASKED.items():
            body = question(limits, SAMPLE)
            start = time.perf_counter()
            extender.ask(body)
            yield Figure(f"first question of its kind: {name}", (time.perf_counter() - start) * 1e3, "ms")
            plain.ask(body)
            ours, theirs = _side_by_side(extender, plain, [body] * CALLS)
            yield Figure(f"server CPU, {SAMPLE} names: {name}", ours * 1e3, "ms", 4.0)
            yield Figure("  of the bare app", theirs * 1e3, "ms")
            shuffled = [question(limits, SAMPLE, Random(seed)) for seed in range(CALLS)]
            ours, _ = _side_by_side(extender, plain, shuffled)
            yield Figure("  the names in another order each time", ours * 1e3, "ms", 4.0)
        for name, limits in ASKED.items():
            body = question(limits, 1_000)
            times = sorted(_wall(extender, body) for _ in range(1_000))
            yield Figure(f"p99 with 1,000 names: {name}", times[989] * 1e3, "ms", 10.0)


def _side_by_side(ours: Server, theirs: Server, bodies: Sequence[bytes]) -> tuple[float, float]:
    """CPU seconds per call, in turns."""
    turns = [(cpu_per_call(ours, bodies), cpu_per_call(theirs, bodies)) for _ in range(ROUNDS)]
    return min(turn[0] for turn in turns), min(turn[1] for turn in turns)


def _wall(server: Server, body: bytes) -> float:
    start = time.perf_counter()
    server.ask(body)
    return time.perf_counter() - start
