"""Runs a component as a process: its client, its log, and a stop at SIGINT or SIGTERM."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from carrel.command_errors import CONFLICT, UNAVAILABLE, USAGE, command_failed
from carrel.kubernetes.cluster import ClusterError, FieldValidation
from carrel.kubernetes.objects.release import why_unsupported
from carrel.log_lines import log_lines
from carrel.parsing import Malformed
from carrel.parsing.secret_settings import missing_seal_key, mistakes_in_secrets
from carrel.settings import ClusterSettings, LogLevel, ServingSettings

if TYPE_CHECKING:
    from carrel.kubernetes.client import Client
    from carrel.kubernetes.config import Access

RELEASE_RETRY_S = 5.0
"""How often an API server that does not answer is asked again for its release."""


# --- the API server --------------------------------------------------------------------------------------------------


def cluster_access(settings: ClusterSettings) -> "Access":
    """Where the API server is. The command ends if the kubeconfig cannot be used."""
    try:
        return settings.access()
    except Malformed as malformed:
        raise command_failed("No usable kubeconfig", str(malformed), "kubectl config view", USAGE) from None


def connect(settings: ClusterSettings) -> "Client":
    """A client of the API server. The command ends if the kubeconfig cannot be used.

    A field that the API server does not know is dropped with a warning: during an upgrade the custom resource
    definitions may be older than this process, which must still work. Clients in tests are strict.
    """
    from carrel.kubernetes.client import Client
    from carrel.kubernetes.http_transport import HttpTransport

    return Client(HttpTransport(cluster_access(settings)), FieldValidation.WARN)


@contextlib.asynccontextmanager
async def stop_if_unsupported(client: "Client", stop: asyncio.Event) -> AsyncIterator[None]:
    """While the block runs, asks the API server for its release. If it is too old, sets `stop`, and the command fails
    when the block ends. While the API server cannot be reached, the component serves: its probes must be answered."""
    checking = asyncio.create_task(_wait_why_unsupported(client))
    checking.add_done_callback(lambda done: stop.set() if not done.cancelled() and done.result() else None)
    try:
        yield
        why = checking.result() if checking.done() else ""
    finally:
        checking.cancel()
    if why:
        raise command_failed("This Kubernetes is too old for Carrel", why, "docs/compatibility.md", UNAVAILABLE)


@contextlib.asynccontextmanager
async def only_installation(client: "Client", namespace: str, stop: asyncio.Event) -> AsyncIterator["Client"]:
    """The client whose writes wait until it is known that no other installation of Carrel is in the cluster. If there
    is one, sets `stop`, and the command fails when the block ends."""
    from carrel.installation import OneInstallation

    installation = OneInstallation(client, namespace)
    looking = asyncio.create_task(installation.wait_other())
    looking.add_done_callback(lambda done: None if done.cancelled() else stop.set())
    try:
        await installation.wait_first_look()
        if not installation.why_not:
            yield client.guarded(installation.require)
    finally:
        looking.cancel()
    if installation.why_not:
        advice = "kubectl get clusterrole carrel-installation --output yaml"
        raise command_failed("Another installation of Carrel is here", installation.why_not, advice, CONFLICT)


async def _wait_why_unsupported(client: "Client") -> str:
    """Waits for the answer of the API server. Empty if Carrel runs on it."""
    while True:
        try:
            return why_unsupported(await client.release())
        except (ClusterError, Malformed):
            await asyncio.sleep(RELEASE_RETRY_S)  # the watches log why the API server cannot be asked


# --- the process -----------------------------------------------------------------------------------------------------


def log_to_stderr(level: LogLevel) -> None:
    log_lines(logging.getLevelNamesMapping()[level.name])


def run_with_cluster(
    name: str, settings: ServingSettings, serve: "Callable[[Client, asyncio.Event], Awaitable[None]]"
) -> None:
    """Runs a component that needs a cluster, until SIGINT or SIGTERM sets the event that `serve` is given."""
    wrong = [*mistakes_in_secrets(settings), *missing_seal_key(settings)]
    if wrong:
        raise command_failed("The settings cannot be used", "; ".join(wrong), f"carrel {name} --help", USAGE)
    log_to_stderr(settings.log_level)
    client = connect(settings)

    async def with_client(stop: asyncio.Event) -> None:
        async with (
            contextlib.aclosing(client),
            stop_if_unsupported(client, stop),
            only_installation(client, settings.carrel_namespace, stop) as only,
        ):
            await serve(only, stop)

    run_until_signal(name, settings, with_client)


def run_until_signal(name: str, settings: ServingSettings, serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Runs a component until SIGINT or SIGTERM sets the event that `serve` is given. If its port is taken, the command
    fails."""
    import uvloop

    async def until_signal() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(stop)

    log_to_stderr(settings.log_level)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(until_signal())
    except OSError as error:
        own = f"{settings.bind_address}:{settings.port}"
        where, why = error.filename or own, error.strerror or str(error)
        help_ = f"carrel {name} --port 0" if where == own else f"carrel {name} --help"
        raise command_failed(f"Cannot listen on {where}", why, help_, UNAVAILABLE) from None
