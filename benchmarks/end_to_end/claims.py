"""Pods with ResourceClaims per second through the real kube-scheduler, with Carrel's gate and without, in turns.

    python -m benchmarks.end_to_end.claims

Each pod uses half a GPU by a claim of its own. Without the gate nobody but kube-scheduler counts: that is plain DRA, as
fast as it can be. With it, kube-apiserver asks Carrel's webhook about each allocation, which writes a Lease.
"""

import argparse
import asyncio
import statistics
import sys
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from ssl import _create_unverified_context, create_default_context
from typing import Any
from urllib.request import urlopen

from benchmarks.end_to_end.real_cluster import (
    GPU_MIB,
    LAB,
    OURS,
    RealCluster,
    a_node,
    all_at_once,
    real_cluster,
)
from benchmarks.end_to_end.rounds import SCHEDULER, Bindings, Outcome
from benchmarks.measuring import Figure
from carrel.kubernetes.cluster import MergePatch, NotFound, Selection
from carrel.kubernetes.objects.resources import LEASES, NODES, PODS, VALIDATING_WEBHOOKS
from carrel.kubernetes.reflector import Informers
from carrel.manifests import dra
from carrel.resource_claims.node.device_slice import ServerAbility, devices_of, slice_of
from carrel.resource_claims.objects import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from testbed.processes import Process

PROFILE = "default-scheduler"
LEAST_RATIO = 0.8
"""The goal: of the rate without the gate."""
PATH_SECRET = "a-secret-of-the-benchmark"
HALF = f"{GPU_MIB // 2}Mi"


async def prepare(cluster: RealCluster, nodes: int) -> None:
    for each in dra():
        if each["kind"] == DEVICE_CLASSES.kind:
            await cluster.client.create(DEVICE_CLASSES, each)
    for number in range(nodes):
        node = a_node(number)
        uid = (await cluster.client.get(NODES, node.name))["metadata"]["uid"]
        body = slice_of(node.name, uid, devices_of(node.gpus, ServerAbility(), {}), 1)
        await cluster.client.create(RESOURCE_SLICES, body)


async def add_pods(cluster: RealCluster, count: int) -> None:
    wanted = {"deviceClassName": "gpu.carrel.dev", "capacity": {"requests": {"memory": HALF}}}
    container = {"name": "main", "image": "work", "resources": {"claims": [{"name": "gpu"}]}}

    async def add(number: int) -> None:
        name = f"pod-{number:05}"
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": wanted}]}}
        await cluster.client.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec}, LAB)
        uses = [{"name": "gpu", "resourceClaimName": name}]
        pod = {"metadata": {"name": name}, "spec": {"containers": [container], "resourceClaims": uses}}
        await cluster.client.create(PODS, pod, LAB)

    await all_at_once(range(count), add)


async def clear(cluster: RealCluster) -> None:
    await cluster.clear()

    async def delete(name: str) -> None:
        with suppress(NotFound):
            await cluster.client.patch(RESOURCE_CLAIMS, name, MergePatch({"metadata": {"finalizers": None}}), LAB)
            await cluster.client.delete(RESOURCE_CLAIMS, name, LAB)

    claims = (await cluster.client.list(RESOURCE_CLAIMS, Selection(LAB))).items
    await all_at_once([claim.metadata.name for claim in claims], delete)


@contextmanager
def a_gate(cluster: RealCluster) -> Iterator[Process]:
    """kube-apiserver asks it when the block begins."""
    api, port = cluster.api, cluster.api.slot.ports[-1]
    command: list[str | Path] = ["env", f"CARREL_PATH_SECRET={PATH_SECRET}", "CARREL_SEAL_KEY=none"]
    command += [sys.executable, "-m", "carrel", "webhook", "--kubeconfig", api.kubeconfig]
    configuration_file = api.run.data / "claims.yaml"
    configuration_file.write_text("resourceClaims: {enabled: true}")
    command += ["--port", str(port), "--config", configuration_file]
    process = api.start("webhook", command)
    url = f"https://127.0.0.1:{port}"
    (configuration,) = [each for each in dra() if each["kind"] == VALIDATING_WEBHOOKS.kind]
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"] = {"url": f"{url}{webhook['clientConfig']['service']['path']}"}
    process.wait_until("ready", lambda: _is_ready(url), limit_seconds=180)
    api.call("POST", VALIDATING_WEBHOOKS.path(), configuration)
    try:
        process.wait_until("trusted", lambda: _is_trusted(cluster, url), limit_seconds=180)
        yield process
    finally:
        api.call("DELETE", VALIDATING_WEBHOOKS.path(name="carrel"))
        process.stop()


def _is_ready(url: str) -> bool:
    anybody = _create_unverified_context()  # only whether it is ready; the API server does verify
    with urlopen(f"{url}/readyz", timeout=5, context=anybody) as answer:
        return bool(answer.status == 200)


def _is_trusted(cluster: RealCluster, url: str) -> bool:
    found = cluster.api.call("GET", VALIDATING_WEBHOOKS.path(name="carrel"))["webhooks"]
    bundles = [each["clientConfig"].get("caBundle", "") for each in found]
    if not all(bundles):
        return False
    context = create_default_context(cadata=b64decode(bundles[0]).decode())
    with urlopen(f"{url}/readyz", timeout=5, context=context) as answer:  # its certificate names the host by now
        return bool(answer.status == 200)


async def a_round(cluster: RealCluster, pods: int, gate: Process | None) -> Outcome:
    await add_pods(cluster, pods)
    bindings, informers = Bindings(pods), Informers(cluster.client)
    bindings.processes |= {"kube-apiserver": cluster.api.process, "etcd": cluster.api.etcd}
    if gate is not None:
        bindings.processes["webhook"] = gate
    informers.watch(PODS, Selection(LAB, fields="spec.nodeName!=")).on_change(bindings.on_pod)
    watching = asyncio.create_task(informers.run())
    started: list[Process] = []
    try:
        await informers.wait_synced()
        started.append(cluster.start_scheduler(PROFILE, ""))
        bindings.processes[SCHEDULER] = started[-1]
        outcome = await bindings.wait_all()
        if gate is not None:
            await check(cluster, pods)
        return outcome
    finally:
        watching.cancel()
        for process in started:
            process.stop()
        await clear(cluster)


async def check(cluster: RealCluster, pods: int) -> None:
    """Each claim is on a Lease: else the gate was not asked, and the figures mean nothing."""
    leases = (await cluster.client.list(LEASES, Selection(OURS))).items
    shares = sum(each.metadata.annotations.get("carrel.dev/shares", "").count('"claim"') for each in leases)
    if shares < pods:
        raise RuntimeError(f"{pods} pods are bound, and {shares} claims are on Leases")


async def measure(chosen: argparse.Namespace) -> dict[str, list[Outcome]]:
    rounds: dict[str, list[Outcome]] = {"without the gate": [], "with the gate": []}
    async with real_cluster() as cluster:
        cluster.grow_to(chosen.nodes)
        await prepare(cluster, chosen.nodes)
        for number in range(chosen.rounds):
            for name in sorted(rounds, reverse=number % 2 == 0):
                if name == "with the gate":
                    with a_gate(cluster) as gate:
                        outcome = await a_round(cluster, chosen.pods, gate)
                else:
                    outcome = await a_round(cluster, chosen.pods, None)
                rounds[name].append(outcome)
                shown = ", ".join(f"{process} {cpu:.2f} ms" for process, cpu in sorted(outcome.cpu_ms.items()))
                print(f"round {number + 1}, {name}: {outcome.pods_per_s:.0f} pods/s; {shown}", flush=True)
    return rounds


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.end_to_end.claims", description=__doc__)
    parser.add_argument("--nodes", type=int, default=50, help="each with eight GPUs, that is sixteen halves")
    parser.add_argument("--pods", type=int, default=600, help="that wait, in each round")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind; the medians are compared")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    rounds = asyncio.run(measure(options(arguments)))
    rates: dict[str, Any] = {name: statistics.median(each.pods_per_s for each in all) for name, all in rounds.items()}
    figures = [Figure(f"{name}: pods per second", rate, "/s") for name, rate in rates.items()]
    slower = rates["without the gate"] / rates["with the gate"]
    figures += [
        Figure("pods per second with / without", 1 / slower, "×"),
        Figure("pods per second without / with", slower, "×", 1 / LEAST_RATIO),
    ]
    print(*figures, sep="\n")
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
