"""Runs the agent until a signal arrives, as the only one on its node.

Two would replace each other's registration with the kubelet again and again.

The lock is on a file in a folder of its own beside the sockets, because the kubelet removes every file there. The lock
ends with the process that holds it, however that ends. The folder stays, on purpose: a kubelet that finds the place
empty treats its node as new, and sets all resources that it does not manage to zero.
"""

import asyncio
import contextlib
import fcntl
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import IO

from carrel.cluster.configuration_record import Reads
from carrel.command_errors import USAGE, command_failed
from carrel.configuration.current import CurrentConfiguration
from carrel.configuration.schema import ResourceClaims
from carrel.dialects.options import DraDriver
from carrel.http.health import health_app
from carrel.http.serving import Address, serving
from carrel.kubernetes.client import Client
from carrel.node.agent import Agent, AgentContext
from carrel.node.claim_driver import ClaimDriver
from carrel.node.interfaces import Machine
from carrel.node.kubelet import KubeletCheckpoint, KubeletPodResources
from carrel.node.pod_cgroups import PodCgroups
from carrel.node.settings import AgentOptions, AgentSettings
from carrel.parsing import Malformed
from carrel.process import run_with_cluster

log = logging.getLogger(__name__)

READS = Reads(("memory", "dialects", "nodes", "resourceClaims"), ("memory.capacity",))

POLL_S = 0.5


@contextlib.asynccontextmanager
async def only_agent_on_node(plugin_folder: Path) -> AsyncIterator[None]:
    """Waits until no other agent runs on this node and the folder is writable."""
    logged = ""
    while isinstance(lock := _take(plugin_folder / "carrel"), str):
        if lock != logged:
            log.warning("waiting: %s", lock)
        logged = lock
        await asyncio.sleep(POLL_S)
    with lock:
        yield


def _take(folder: Path) -> IO[str] | str:
    """The lock, or why it is not available."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "agent.lock").open("a")
    except OSError as error:
        return str(error)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return f"another agent serves this node: it holds {lock.name}"
    return lock


def run(settings: AgentSettings) -> None:
    if not settings.node_name:
        raise command_failed(
            "No node",
            "The agent does not know the name of its node: neither --node-name nor NODE_NAME says it.",
            "carrel agent --node-name dgx-1",
            USAGE,
        )
    machine = _machine(settings)
    run_with_cluster("agent", settings, partial(_serve, settings, machine), READS)


def _machine(settings: AgentSettings) -> Machine:
    if not settings.simulate:
        from carrel.node.nvidia import NvmlMachine

        return NvmlMachine(settings.node_name)
    from carrel.node.simulated_machine import SimulatedMachine

    try:
        return SimulatedMachine(settings.simulate, settings.node_name)
    except (Malformed, OSError) as error:
        raise command_failed("No GPUs to simulate", str(error), "carrel agent --help", USAGE) from None


def claim_driver_of(claims: ResourceClaims) -> type[ClaimDriver]:
    if not claims.enabled or claims.driver is not DraDriver.CARREL:
        return ClaimDriver
    from carrel.resource_claims.node.node_claims import NodeClaims

    return NodeClaims


async def _run_agent(agent: Agent, options: AgentOptions) -> None:
    async with only_agent_on_node(options.plugin_folder):
        await agent.run()


async def _serve(
    settings: AgentSettings, machine: Machine, client: Client, current: CurrentConfiguration, stop: asyncio.Event
) -> None:
    options, driver = settings.options(current.value), claim_driver_of(current.value.resource_claims)
    pod_resources, checkpoint = KubeletPodResources(options.pod_resources), KubeletCheckpoint(options.plugin_folder)
    context = AgentContext(machine, pod_resources, checkpoint, PodCgroups(settings.cgroups), driver)
    agent = Agent(client, options, context, client.clock.now)
    app = health_app(agent.trouble, agent.metrics.text)
    async with serving(app, Address(settings.bind_address, settings.port)) as url:
        log.info("listening url=%s node=%s mode=%s", url, options.node_name, options.mode.value)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(_run_agent(agent, options))
            await stop.wait()
            running.cancel()
    log.info("stopped")
