"""Runs the agent until a signal comes."""

import asyncio
import logging

from carrel.adapters.kube import Client
from carrel.adapters.kubelet import KubeletCheckpoint, KubeletPodResources
from carrel.adapters.web import Address, serving
from carrel.doors.agent.alone import alone
from carrel.doors.agent.metrics import health_app
from carrel.doors.agent.rounds import Agent, Premises
from carrel.doors.agent.settings import AgentSettings
from carrel.ports.node import Machine
from carrel.protocols import Malformed
from carrel.settings import USAGE, complain, serve_door
from carrel.wiring import utc_now

log = logging.getLogger(__name__)


def run(settings: AgentSettings) -> None:
    if not settings.node_name:
        raise complain(
            "No node", "which node's cards are these?", "carrel agent --node-name <name>, or NODE_NAME", USAGE
        )
    machine = _machine(settings)
    serve_door("agent", settings, lambda client, stop: _serve(client, settings, machine, stop))


def _machine(settings: AgentSettings) -> Machine:
    if settings.simulate is None:
        from carrel.adapters.nvidia import NvmlMachine

        return NvmlMachine(settings.node_name)
    from carrel.adapters.simulation.machine import SimulatedMachine

    try:
        return SimulatedMachine(settings.simulate, settings.node_name)
    except (Malformed, OSError) as error:
        raise complain("No cards to simulate", str(error), "carrel agent --help", USAGE) from None


async def _run_alone(agent: Agent, settings: AgentSettings) -> None:
    async with alone(settings.plugin_folder):
        await agent.run()


async def _serve(client: Client, settings: AgentSettings, machine: Machine, stop: asyncio.Event) -> None:
    books, memory = KubeletPodResources(settings.pod_resources), KubeletCheckpoint(settings.plugin_folder)
    premises = Premises(machine, books, memory)
    agent = Agent(client, settings, premises, utc_now)
    app = health_app(agent.metrics, agent.trouble)
    async with serving(app, Address(settings.bind_address, settings.port)) as url:
        log.info("listening url=%s node=%s mode=%s", url, settings.node_name, settings.mode.value)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(_run_alone(agent, settings))
            await stop.wait()
            running.cancel()
    log.info("left")
