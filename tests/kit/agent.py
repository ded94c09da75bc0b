"""An agent in this process: on the embedded API, a fake kubelet, and GPUs from a file."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from carrel.configuration.gpu_memory import MemoryResource
from carrel.configuration.schema import ResourceClaims
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import FieldValidation
from carrel.node.agent import Agent, AgentContext
from carrel.node.kubelet import KubeletCheckpoint, KubeletPodResources
from carrel.node.pod_cgroups import PodCgroups
from carrel.node.run import claim_driver_of
from carrel.node.settings import AgentOptions
from carrel.node.simulated_machine import SimulatedMachine
from tests.kit.eventually import LIMIT_S, eventually
from tests.kit.gpus import N1
from tests.kit.kubelet import FakeKubelet, a_kubelet
from tests.kit.lab import QUICK, Lab

TWO_GPUS = [{"count": 2, "model": "Tesla-V100", "memoryMiB": 16276}]


@dataclass
class RunningAgent:
    lab: Lab
    kubelet: FakeKubelet
    agent: Agent
    gpus: Path

    def simulate(self, gpus: Sequence[Mapping[str, Any]]) -> None:
        write_gpus(self.gpus, gpus)

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.lab.client.get(GPU_NODE_STATUSES, "n1")).get("status", {})
        return found

    async def devices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.status()).get("devices", [])
        return found


def write_gpus(file: Path, gpus: Sequence[Mapping[str, Any]]) -> None:
    draft = file.with_suffix(".draft")
    draft.write_text(yaml.safe_dump({"gpus": list(gpus)}))
    draft.rename(file)


@contextlib.asynccontextmanager
async def an_agent(
    lab: Lab,
    transport: Any = None,
    gpus: Sequence[Mapping[str, Any]] = TWO_GPUS,
    kubelet: FakeKubelet | None = None,
    fields: FieldValidation = FieldValidation.STRICT,
    claims: ResourceClaims | None = None,
    cgroups: Path | None = None,
    machine: type[SimulatedMachine] = SimulatedMachine,
    **settings: Any,
) -> AsyncIterator[RunningAgent]:
    """Of the node n1, by default with a plugin for memory. When the block begins the plugin is registered; where memory
    is advertised on the Node, the agent is ready."""
    async with a_kubelet() if kubelet is None else contextlib.nullcontext(kubelet) as kubelet:
        file = kubelet.folder / "gpus.yaml"
        write_gpus(file, gpus)
        settings = {"memory_resource": MemoryResource.PLUGIN, **settings}
        given = AgentOptions(node_name=N1, kubelet_folder=kubelet.root, **settings)
        pod_resources, checkpoint = KubeletPodResources(kubelet.pod_resources), KubeletCheckpoint(kubelet.folder)
        driver = claim_driver_of(claims or ResourceClaims())
        groups = PodCgroups(cgroups) if cgroups is not None else None
        context = AgentContext(machine(file, N1), pod_resources, checkpoint, groups, driver)
        agent = Agent(Client(transport or lab.api, fields), given, context, lab.clock, QUICK)
        running = asyncio.ensure_future(agent.run())
        try:
            by_plugin = given.memory_resource is MemoryResource.PLUGIN
            await eventually(lambda: agent.memory.is_registered if by_plugin else not agent.trouble(), "its first run")
            yield RunningAgent(lab, kubelet, agent, file)
        finally:
            running.cancel()
            await asyncio.wait([running])


async def becomes(look: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Waits until the API server returns what is wanted."""
    async with asyncio.timeout(LIMIT_S):
        while await look() != wanted:  # noqa: ASYNC110 # it can only be polled
            await asyncio.sleep(0.05)
