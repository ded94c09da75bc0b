"""The agent compares what the driver says about each container with what its pod was promised."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from carrel.kubernetes.cluster import EVERYTHING, BindTarget, MergePatch
from carrel.kubernetes.objects.resources import EVENTS, NODES, PODS
from carrel.ledger.gpus import MiB
from carrel.node.interfaces import ControlGroup
from carrel.node.simulated_machine import SimulatedMachine
from tests.kit.agent import RunningAgent, an_agent, becomes
from tests.kit.eventually import eventually
from tests.kit.gpus import N1
from tests.kit.lab import Lab, a_lab

MAIN, SIDE, OLD = ("0" * 63 + digit for digit in "123")
"""Ids of containers."""


class Limiting(SimulatedMachine):
    """A machine whose driver says what the test sets."""

    limits: Mapping[str, MiB | None] = {}
    """Control group, relative to the root → its limit on any GPU."""

    async def memory_limits(self, groups: Sequence[ControlGroup]) -> Mapping[ControlGroup, MiB | None]:
        said = {group: group.path.rpartition("/")[2] for group in groups}
        return {group: self.limits[name] for group, name in said.items() if name in self.limits}


async def _bound(lab: Lab, running: RunningAgent, root: Path) -> str:
    """A pod with two containers that are limited, and runs. Returns its uid."""
    notes = {"limits.carrel.dev/main": "8138", "limits.carrel.dev/side": "100", "carrel.dev/gpu-memory-mib": "8238"}
    containers = [{"name": name, "image": "x"} for name in ("main", "side")]
    async with lab.replica() as extender:
        await eventually(lambda: (node := extender.ledger.node(N1)) and not node.why_no_limits)
        pod = await lab.pod("a", annotations=notes, containers=containers)
        await extender.sees(pod)
        assert await extender.bind(pod, "n1") is None
    ids = {"main": MAIN, "side": SIDE}
    states = [
        {"name": name, "containerID": f"containerd://{each}", "state": {"running": {}}} for name, each in ids.items()
    ]
    status = MergePatch({"status": {"phase": "Running", "containerStatuses": states}})
    await lab.client.patch(PODS, "a", status, "lab", subresource="status")
    uid: str = pod["metadata"]["uid"]
    there = root / f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    for each in (MAIN, SIDE, OLD):
        (there / f"cri-containerd-{each}.scope").mkdir(parents=True)
    return uid


async def test_a_container_with_another_limit_than_promised_is_told_and_shown(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "kubepods.slice").mkdir()
    gpus = [{"model": "Tesla-T4", "memoryMiB": 16276, "driver": "615.20"}]
    async with a_lab([]) as lab:
        await lab.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        async with an_agent(lab, gpus=gpus, cgroups=tmp_path, machine=Limiting) as running:
            Limiting.limits = {}
            await _bound(lab, running, tmp_path)

            async def told() -> object:
                events = (await lab.client.list(EVENTS, EVERYTHING)).items
                return sorted(
                    each.message.split(" of lab/")[0] for each in events if each.reason == "GPUMemoryNotLimited"
                )

            async def said() -> object:
                running.agent._due.set()
                message = (await running.status()).get("message", "")
                return [words for words in ("container main of lab/a", "container side of lab/a") if words in message]

            # Nobody but an admin can write such an amount; it stops the look at no other pod.
            odd = await lab.pod("odd", annotations={"limits.carrel.dev/main": "much"})
            await lab.client.bind(BindTarget("lab", "odd", odd["metadata"]["uid"], "n1", {}))
            await lab.client.patch(
                PODS, "odd", MergePatch({"status": {"phase": "Running"}}), "lab", subresource="status"
            )
            right = {f"cri-containerd-{MAIN}.scope": MiB(4119), f"cri-containerd-{SIDE}.scope": MiB(4119)}
            Limiting.limits = right
            await becomes(said, [])
            assert await told() == []

            Limiting.limits = {**right, f"cri-containerd-{MAIN}.scope": None}
            await becomes(said, ["container main of lab/a"])
            await becomes(told, ["container main"])
            assert "may use as much as it likes of GPU-" in (await running.status())["message"]
            assert b"carrel_node_containers_not_limited 1.0" in running.agent.metrics.text()

            Limiting.limits = {**right, f"cri-containerd-{SIDE}.scope": MiB(9000)}
            await becomes(said, ["container side of lab/a"])
            await becomes(told, ["container main", "container side"])

            Limiting.limits = right
            await becomes(said, [])
            assert await told() == ["container main", "container side"], "each is told once"
