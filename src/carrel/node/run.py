"""Runs the agent until a signal arrives."""

import asyncio
import logging

from carrel.command_errors import USAGE, command_failed
from carrel.http.health import health_app
from carrel.http.serving import Address, serving
from carrel.kubernetes.client import Client
from carrel.node.agent import Agent, AgentContext
from carrel.node.interfaces import Machine
from carrel.node.kubelet import KubeletCheckpoint, KubeletPodResources
from carrel.node.pod_cgroups import PodCgroups
from carrel.node.settings import AgentSettings
from carrel.node.single_instance import only_agent_on_node
from carrel.parsing import Malformed
from carrel.process import run_with_cluster

log = logging.getLogger(__name__)


def run(settings: AgentSettings) -> None:
    if not settings.node_name:
        raise command_failed(
            "No node",
            "the agent does not know the name of its node",
            "carrel agent --node-name <name>, or NODE_NAME",
            USAGE,
        )
    if wrong := settings.mistakes():
        raise command_failed("The settings cannot be used", "; ".join(wrong), "carrel agent --help", USAGE)
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
        raise command_failed("No GPUs to simulate", str(error), "carrel agent --help", USAGE) from None


async def _run_agent(agent: Agent, settings: AgentSettings) -> None:
    async with only_agent_on_node(settings.plugin_folder):
        await agent.run()


async def _serve(client: Client, settings: AgentSettings, machine: Machine, stop: asyncio.Event) -> None:
    pod_resources, checkpoint = KubeletPodResources(settings.pod_resources), KubeletCheckpoint(settings.plugin_folder)
    context = AgentContext(machine, pod_resources, checkpoint, PodCgroups(settings.cgroups))
    agent = Agent(client, settings, context, client.clock.now)
    app = health_app(agent.trouble, agent.metrics.text)
    async with serving(app, Address(settings.bind_address, settings.port)) as url:
        log.info("listening url=%s node=%s mode=%s", url, settings.node_name, settings.mode.value)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(_run_agent(agent, settings))
            await stop.wait()
            running.cancel()
    log.info("stopped")
