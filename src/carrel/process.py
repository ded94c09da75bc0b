"""Runs a component as a process: its client, its log, and a stop at SIGINT or SIGTERM."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.command_errors import CONFLICT, UNAVAILABLE, USAGE, command_failed
from carrel.configuration.current import CurrentConfiguration
from carrel.configuration.reading import Unusable, read
from carrel.configuration.schema import Configuration
from carrel.kubernetes.cluster import ClusterError, FieldValidation
from carrel.kubernetes.objects.release import why_unsupported
from carrel.log_lines import log_lines
from carrel.parsing import Malformed
from carrel.parsing.secret_settings import missing_seal_key, mistakes_in_secrets
from carrel.settings import ClusterSettings, LogLevel, ServingSettings, cluster_access, moved_settings

if TYPE_CHECKING:
    from carrel.cluster.configuration_record import Reads
    from carrel.kubernetes.client import Client

    Serve = Callable[[Client, CurrentConfiguration, asyncio.Event], Awaitable[None]]

log = logging.getLogger(__name__)

CONFIGURATION_ANSWER_S = 10.0
"""How long the API server may take to say the configuration."""
CONFIGURATION_RETRY_S = 1.0
"""How often an API server that does not answer is asked again for the configuration."""
RESTART_AFTER_S = 5.0
"""How long a change must have been recorded before the process starts again for it. A record that somebody edits is
written again by the leading controller, if that has not started again for it meanwhile."""
RELEASE_RETRY_S = 5.0
"""How often an API server that does not answer is asked again for its release."""


# --- the API server --------------------------------------------------------------------------------------------------


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
    from carrel.cluster.installation import OneInstallation

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


# --- the configuration -----------------------------------------------------------------------------------------------


class StartAgain(Exception):
    """The process has to start again, because of a change of the configuration."""


@contextlib.asynccontextmanager
async def following_configuration(
    name: str, settings: ServingSettings, client: "Client", reads: "Reads", stop: asyncio.Event
) -> AsyncIterator[CurrentConfiguration | None]:
    """The configuration in force, which changes while the block runs. If the process has to start again for a change,
    sets `stop`, and raises `StartAgain` when the block ends. None: it was stopped before there was any."""
    from carrel.cluster.configuration_record import ConfigurationWatch

    if settings.config is not None:
        yield CurrentConfiguration(configuration_in(settings.config))
        return
    async with _answering_probes(settings):
        first = await _first_configuration(name, settings, client, stop)
    if first is None:
        yield None
        return
    current = CurrentConfiguration(first)
    watch = ConfigurationWatch(client, settings.carrel_namespace, current, reads)

    def restart() -> None:
        if watch.why_restart:
            stop.set()

    watch.on_restart = partial(asyncio.get_running_loop().call_later, RESTART_AFTER_S, restart)
    watching = asyncio.create_task(watch.run())
    try:
        yield current
    finally:
        watching.cancel()
    if watch.why_restart:
        raise StartAgain(watch.why_restart)


async def _first_configuration(
    name: str, settings: ServingSettings, client: "Client", stop: asyncio.Event
) -> Configuration | None:
    """While the API server cannot be asked, it waits: there is no configuration that would do instead. None: it was
    stopped meanwhile."""
    from carrel.cluster.configuration_record import NoConfiguration, first_configuration

    logged = ""
    while not stop.is_set():
        try:
            async with asyncio.timeout(CONFIGURATION_ANSWER_S):
                return await first_configuration(client, settings.carrel_namespace)
        except NoConfiguration as error:
            advice = f"carrel config check FILE, or carrel {name} --config FILE"
            raise command_failed("There is no configuration that can be used", str(error), advice, USAGE) from None
        except (ClusterError, TimeoutError) as error:
            why = str(error) or "the API server does not answer"
            if why != logged:
                log.warning("waiting_for_configuration: %s", why)
            logged = why
        await asyncio.wait([asyncio.ensure_future(stop.wait())], timeout=CONFIGURATION_RETRY_S)
    return None


@contextlib.asynccontextmanager
async def _answering_probes(settings: ServingSettings) -> AsyncIterator[None]:
    """Says that the process lives and is not ready, where its probes ask. Raises `OSError` if the port is taken."""
    from carrel.http.health import health_app
    from carrel.http.serving import Address, serving

    if settings.probed_by_tls:
        yield
        return
    app = health_app(lambda: "the API server has not said the configuration yet", bytes)
    async with serving(app, Address(settings.bind_address, settings.port)) as url:
        log.info("waiting url=%s", url)
        yield


def configuration_in(file: Path) -> Configuration:
    """Return the configuration of a file. The command ends with everything that is wrong in it."""
    try:
        return read(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise command_failed(f"{file} cannot be read", str(error), "carrel config check FILE", USAGE) from None
    except Unusable as unusable:
        why = "\n  ".join(unusable.mistakes)
        raise command_failed(
            f"The configuration in {file} cannot be used", why, "docs/configuration.md", USAGE
        ) from None


# --- the process -----------------------------------------------------------------------------------------------------


def log_to_stderr(level: LogLevel) -> None:
    log_lines(logging.getLevelNamesMapping()[level.name])


def run_with_cluster(name: str, settings: ServingSettings, serve: "Serve", reads: "Reads") -> None:
    """Runs a component that needs a cluster, until SIGINT or SIGTERM sets the event that `serve` is given.

    `reads`: of the configuration. A change that it cannot take over while it runs makes it stop as by a signal, and
    start again.
    """
    wrong = [*moved_settings(), *mistakes_in_secrets(settings), *missing_seal_key(settings)]
    if wrong:
        raise command_failed("The settings cannot be used", "\n".join(wrong), f"carrel {name} --help", USAGE)
    if settings.config is not None:
        configuration_in(settings.config)  # a mistake in it ends the command before anything is begun
    log_to_stderr(settings.log_level)
    client = connect(settings)

    async def with_client(stop: asyncio.Event) -> None:
        async with (
            contextlib.aclosing(client),
            stop_if_unsupported(client, stop),
            only_installation(client, settings.carrel_namespace, stop) as only,
            following_configuration(name, settings, only, reads, stop) as current,
        ):
            if current is not None:
                await serve(only, current, stop)

    run_until_signal(name, settings, with_client)


def run_until_signal(name: str, settings: ServingSettings, serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Runs a component until SIGINT or SIGTERM sets the event that `serve` is given. If its port is taken, the command
    fails."""
    import uvloop

    was_told_to_end = False

    async def until_signal() -> None:
        stop = asyncio.Event()

        def end() -> None:
            nonlocal was_told_to_end
            was_told_to_end = True
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end)
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
    except StartAgain as change:
        if was_told_to_end:
            return
        log.warning("starting_again for a change of the configuration: %s", change)
        os.execv(sys.executable, [sys.executable, "-m", "carrel", *sys.argv[1:]])  # noqa: S606 # itself
