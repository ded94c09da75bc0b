"""`carrel withdraw`: removes what agents wrote on the Nodes, when Carrel is uninstalled."""

import asyncio
import contextlib

import typer

from carrel.command_errors import CONFLICT, UNAVAILABLE, command_failed
from carrel.kubernetes.cluster import ClusterError
from carrel.node.withdrawal import AgentsStillRunning, Withdrawal
from carrel.process import connect
from carrel.settings import ClusterSettings


def withdraw_all(settings: ClusterSettings) -> None:
    client = connect(settings)

    async def withdraw() -> list[str]:
        async with contextlib.aclosing(client):
            return await Withdrawal(client).withdraw()

    try:
        nodes = asyncio.run(withdraw())
    except AgentsStillRunning as still:
        why = f"agents of these nodes still run, and have written again what was removed: {still}"
        raise command_failed(
            "Not withdrawn", why, "delete the agents' DaemonSet, then: carrel withdraw", CONFLICT
        ) from None
    except ClusterError as error:
        raise command_failed(
            "Not withdrawn", str(error), "kubectl auth can-i patch nodes/status", UNAVAILABLE
        ) from None
    typer.echo(f"Withdrawn from {', '.join(nodes)}." if nodes else "No Node has anything that an agent wrote.")
