"""Runs the agent until a signal comes."""

import asyncio
import logging

from carrel.command_errors import USAGE, command_failed
from carrel.http.health import health_app
from carrel.http.serving import Address, serving
from carrel.kubernetes.client import Client
from carrel.leases.cluster_state import utc_now
from carrel.node.agent import Agent, Premises
from carrel.node.interfaces import Machine
from carrel.node.kubelet import KubeletCheckpoint, KubeletPodResources
from carrel.node.settings import AgentSettings
from carrel.node.single_instance import alone
from carrel.parsing import Malformed
from carrel.process import run_with_cluster

log = logging.getLogger(__name__)


def run(settings: AgentSettings) -> None:
    if not settings.node_name:
        raise command_failed(
            "No node", "which node's cards are these?", "carrel agent --node-name <name>, or NODE_NAME", USAGE
        )
    machine = _machine(settings)
    run_with_cluster("agent", settings, lambda client, stop: _serve(client, settings, machine, stop))


def _machine(settings: AgentSettings) -> Machine:
    if settings.simulate is None:
        from carrel.node.nvidia import NvmlMachine

        return NvmlMachine(settings.node_name)
    from carrel.node.simulated_machine import SimulatedMachine

    try:
        return SimulatedMachine(settings.simulate, settings.node_name)
    except (Malformed, OSError) as error:
        raise command_failed("No cards to simulate", str(error), "carrel agent --help", USAGE) from None


async def _run_alone(agent: Agent, settings: AgentSettings) -> None:
    async with alone(settings.plugin_folder):
        await agent.run()


async def _serve(client: Client, settings: AgentSettings, machine: Machine, stop: asyncio.Event) -> None:
    books, memory = KubeletPodResources(settings.pod_resources), KubeletCheckpoint(settings.plugin_folder)
    premises = Premises(machine, books, memory)
    agent = Agent(client, settings, premises, utc_now)
    app = health_app(agent.trouble, agent.metrics.text)
    async with serving(app, Address(settings.bind_address, settings.port)) as url:
        log.info("listening url=%s node=%s mode=%s", url, settings.node_name, settings.mode.value)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(_run_alone(agent, settings))
            await stop.wait()
            running.cancel()
    log.info("stopped")
