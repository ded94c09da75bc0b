"""The agent, the controller's reservation pods and a bind, beside NVIDIA's plugin in each of its strategies."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from carrel.kubernetes.cluster import Json, MergePatch, Selection
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.ledger.refusals import Refusal
from carrel.node.interfaces import AllocatedDevices
from carrel.node.nvidia.visible_gpu import GpuSources, visible_gpu
from carrel.node.settings import AgentMode
from tests.kit import nvidia_plugin
from tests.kit.agent import RunningAgent, an_agent
from tests.kit.coexist import RESERVATIONS, create_reservation_namespace
from tests.kit.eventually import LIMIT_S, eventually
from tests.kit.gpus import N1
from tests.kit.lab import Lab, Replica, a_lab

WHOLE = "nvidia.com/gpu"
HALF = {"gpu-fraction": "0.5"}


@dataclass
class CoexistMachine:
    """A machine with NVIDIA's plugin and Carrel's agent. The kubelet chooses the last healthy GPU."""

    lab: Lab
    running: RunningAgent
    replica: Replica
    given: dict[str, str] = field(default_factory=dict)
    """Reservation pod → its GPU."""
    answers: list[object] = field(default_factory=list)
    """What the program in each reservation pod finds."""

    @property
    def control(self) -> Path:
        return self.running.kubelet.folder / "nvidia.txt"

    async def advertise(self) -> None:
        """The kubelet writes on its Node what the plugin has to give."""
        healthy = len(await self.running.kubelet.healthy(WHOLE))
        amounts = {"capacity": {WHOLE: "2"}, "allocatable": {WHOLE: str(healthy)}}
        await self.lab.client.patch(NODES, "n1", MergePatch({"status": amounts}), subresource="status")
        await eventually(lambda: self.replica.ledger.rooms[N1].whole == healthy - len(self.given))

    async def start_reservation_pods(self) -> None:
        kubelet = self.running.kubelet
        for pod in (await self.lab.client.list(PODS, Selection(RESERVATIONS))).items:
            if pod.metadata.name in self.given:
                continue
            free = [gpu for gpu in await kubelet.healthy(WHOLE) if gpu not in self.given.values()]
            answer = await kubelet.answer(WHOLE, free[-1:])
            self.given[pod.metadata.name] = free[-1]
            self.answers.append(visible_gpu(GpuSources(dict(answer.envs), kubelet.folder / "no-driver")))
            kubelet.allocated_devices = [
                AllocatedDevices(RESERVATIONS, name, "resource-reservation", WHOLE, (gpu,))
                for name, gpu in self.given.items()
            ]
            patch = MergePatch({"status": {"phase": "Running"}})
            await self.lab.client.patch(PODS, pod.metadata.name, patch, RESERVATIONS, subresource="status")

    async def bind(self, pod: Json) -> Refusal | None:
        seen = await self.replica.sees(pod)
        if not self.replica.filter(seen, [N1]).fitting:
            return self.replica.waiting_reason.why(seen)
        binding = asyncio.ensure_future(self.replica.scheduler.bind(seen, N1))
        async with asyncio.timeout(LIMIT_S):
            while not binding.done():
                for name in self.replica.reservations.due():
                    await self.replica.reservations.reconcile_slot(name)
                await self.start_reservation_pods()
                await asyncio.sleep(0.02)
        return await binding


async def beside(lab: Lab, running: RunningAgent, replica: Replica, *control: str) -> CoexistMachine:
    machine = CoexistMachine(lab, running, replica)
    machine.control.write_text(" ".join(control))
    return machine


@pytest.mark.parametrize("strategy", nvidia_plugin.STRATEGIES)
async def test_a_fraction_gets_the_gpu_of_its_reservation_pod_whatever_the_plugin_tells_containers(
    strategy: str,
) -> None:
    async with a_lab([]) as lab:
        await lab.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        await create_reservation_namespace(lab)
        async with an_agent(lab, mode=AgentMode.COEXIST) as running, lab.replica() as replica:
            await eventually(lambda: "n1" in replica.ledger.rooms)
            uuids = [device["uuid"] for device in await running.devices()]
            machine = await beside(lab, running, replica, strategy)
            async with nvidia_plugin.a_plugin(running.kubelet.folder, machine.control, uuids):
                await machine.advertise()
                for name in ("a", "b"):
                    assert await machine.bind(await lab.pod(name, annotations=HALF)) is None

            assert [(await lab.annotations(name))["carrel.dev/devices"] for name in ("a", "b")] == [uuids[1]] * 2
            assert len(machine.given) == 1, "they share it"
            (found,) = machine.answers
            # Only by the variable does the program know it; else the kubelet's list, which has UUIDs in every strategy.
            assert found == uuids[1] if strategy == nvidia_plugin.BY_UUID else isinstance(found, Refusal)


async def test_a_gpu_that_only_nvidias_plugin_calls_unhealthy_is_promised_to_nobody() -> None:
    async with a_lab([]) as lab:
        await lab.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        await create_reservation_namespace(lab)
        async with an_agent(lab, mode=AgentMode.COEXIST) as running, lab.replica() as replica:
            await eventually(lambda: "n1" in replica.ledger.rooms)
            uuids = [device["uuid"] for device in await running.devices()]
            machine = await beside(lab, running, replica, nvidia_plugin.BY_CDI, uuids[1])
            async with nvidia_plugin.a_plugin(running.kubelet.folder, machine.control, uuids):
                await machine.advertise()
                assert await machine.bind(await lab.pod("a", annotations=HALF)) is None
                assert (await lab.annotations("a"))["carrel.dev/devices"] == uuids[0]
                refusal = await machine.bind(await lab.pod("b", annotations={"gpu-fraction": "0.9"}))
                assert refusal is not None
                assert "the kubelet of n1 has 1 of 2 GPUs to give, and they are in use" in str(refusal)
                assert len(machine.given) == 1, "no reservation pod was made in vain"

                machine.control.write_text(nvidia_plugin.BY_CDI)
                await machine.advertise()
                assert await machine.bind(await lab.pod("c", annotations={"gpu-fraction": "0.9"})) is None
                assert (await lab.annotations("c"))["carrel.dev/devices"] == uuids[1]
