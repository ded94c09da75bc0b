"""The settings that several doors share, and how a door's settings become its command.

A door declares one dataclass of settings: each field has its type, its default, its option with the environment
variables that may give it too, and beneath it the reason. Nothing else reads the environment; an option wins over it.
"""

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_type_hints

import typer

from carrel.dialects.gpushare import Unit
from carrel.dialects.registry import DialectOptions
from carrel.kubernetes.cluster import ClusterError, FieldValidation
from carrel.kubernetes.objects.release import why_unsupported
from carrel.parsing import Malformed

if TYPE_CHECKING:
    from carrel.dialects.seal import Seal
    from carrel.kubernetes.client import Client
    from carrel.kubernetes.config import Access

S = TypeVar("S")


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True)
class ClusterSettings:
    """Which Kubernetes, and where in it Carrel keeps its own."""

    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Kubeconfig file. Without it: $KUBECONFIG, the pod's ServiceAccount, ~/.kube/config."),
    ] = None
    """$KUBECONFIG may name several files, as kubectl allows; this option names one."""
    context: Annotated[str, typer.Option(help="Context of the kubeconfig.", envvar="CARREL_CONTEXT")] = ""
    """Else the file's current context."""
    server: Annotated[str, typer.Option(help="Address of an API server that asks for no credential.")] = ""
    """For the embedded API of the demo and of tests, which has neither users nor a kubeconfig."""
    carrel_namespace: Annotated[
        str, typer.Option(help="Namespace of Carrel's own Leases.", envvar="CARREL_NAMESPACE")
    ] = "carrel"
    """Nobody else may write there: these Leases are the truth about who holds which card."""

    def access(self) -> "Access":
        """Raises `Malformed` if the kubeconfig cannot be used."""
        from carrel.kubernetes.config import Access, access_from, access_to

        if self.server:
            return Access(self.server.rstrip("/"))
        if self.kubeconfig is not None:
            return access_to(self.kubeconfig, os.environ, self.context)
        return access_from(os.environ, self.context)


@dataclass(frozen=True)
class MemoryUnitSettings:
    """All doors of a cluster must be given the same."""

    memory_unit: Annotated[
        Unit, typer.Option(help="What one unit of gpushare's memory resource is.", envvar="CARREL_MEMORY_UNIT")
    ] = Unit.MIB
    """As the device plugin's --memory-unit: a number on a pod means nothing without it. MiB is the finest; on machines
    whose memory is too much for the kubelet in MiB the agent says which unit to use."""


@dataclass(frozen=True)
class DialectSettings(MemoryUnitSettings):
    """What the cluster's admin decides about the dialects. All doors of a cluster must be given the same."""

    shared_claims_per_card: Annotated[
        int,
        typer.Option(
            help="Shared GpuClaims that name no memory, per card.", envvar="CARREL_SHARED_CLAIMS_PER_CARD", min=1
        ),
    ] = 4
    """A shared claim needs an amount, or cards could be oversubscribed."""

    def dialect_options(self) -> DialectOptions:
        return DialectOptions(self.memory_unit, self.shared_claims_per_card)


@dataclass(frozen=True)
class ServingSettings(ClusterSettings):
    """A door that listens. Each has a port of its own."""

    bind_address: Annotated[str, typer.Option(help="Address to listen on.", envvar="CARREL_BIND_ADDRESS")] = "127.0.0.1"
    """By default only for this machine, or this pod: who may call `bind` may place pods."""
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535, envvar="CARREL_PORT")
    ] = 0
    log_level: Annotated[
        LogLevel, typer.Option(help="How much is told on stderr.", envvar=["CARREL_LOG_LEVEL", "LOG_LEVEL"])
    ] = LogLevel.INFO
    """gpushare's variable and its words."""
    field_validation: Annotated[
        FieldValidation,
        typer.Option(
            help="A field that the API server does not know: it warns, or refuses the write.",
            envvar="CARREL_FIELD_VALIDATION",
        ),
    ] = FieldValidation.WARN
    """During an upgrade the custom resource definitions may be older than this process, which must work all the same.
    Tests are strict."""


@dataclass(frozen=True)
class SealSettings:
    """All doors of a cluster must be given the same."""

    seal_key: Annotated[
        str,
        typer.Option(
            help="Key that proves that a pod came through the webhook; a second one after a comma is believed too.",
            envvar="CARREL_SEAL_KEY",
            show_default=False,
        ),
    ] = ""
    """Without it a GPU pod that was made while the webhook's configuration was missing is placed like any other, with
    whatever tier its author wrote on it. Better in the environment: options are seen by everybody on the machine."""

    def seal(self) -> "Seal | None":
        from carrel.dialects.seal import Seal

        keys = tuple(key.strip().encode() for key in self.seal_key.split(",") if key.strip())
        return Seal(keys) if keys else None


BOOKING = "http://carrel-booking:39997"
"""Where Carrel's own booking service is, within the cluster."""


@dataclass(frozen=True)
class DeskSettings:
    """Whom a door asks about bookings."""

    api_url: Annotated[
        str,
        typer.Option(
            help="Where the booking service is asked; empty: nobody books.", envvar=["CARREL_API_URL", "API_URL"]
        ),
    ] = f"{BOOKING}/api/v1/booking-status"
    """By default Carrel's own booking service; at any other address MAIA's JSON is spoken."""
    api_token: Annotated[
        str,
        typer.Option(
            help="Token for the booking service.", envvar=["CARREL_API_TOKEN", "API_TOKEN"], show_default=False
        ),
    ] = ""
    """Better in the environment: options are seen by everybody on the machine."""


def command(settings: type[S], run: Callable[[S], None]) -> Callable[..., None]:
    """The command of a door: its options are the fields of its settings, its help is what `run` says it does."""

    def opened(**options: object) -> None:
        run(settings(**options))

    opened.__doc__ = run.__doc__
    opened.__name__ = run.__name__
    opened.__annotations__ = get_type_hints(settings, include_extras=True)
    opened.__signature__ = inspect.signature(settings)  # type: ignore[attr-defined] # what typer looks at
    return opened


def log_to_stderr(level: LogLevel) -> None:
    """One line per event: when, how grave, what happened, and its fields as `name=value`."""
    lines = logging.StreamHandler(sys.stderr)
    form = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    lines.setFormatter(form)
    logging.basicConfig(level=logging.getLevelNamesMapping()[level.name], handlers=[lines], force=True)


def complain(what: str, why: str, advice: str, code: int) -> typer.Exit:
    """Prints what went wrong, why, and what helps; raise what it returns."""
    typer.echo(f"✗ {what}\n  {why}\n  Try:  {advice}", err=True)
    return typer.Exit(code)


USAGE, REFUSED, NOT_FOUND, CONFLICT, UNAVAILABLE, FORBIDDEN = 2, 3, 4, 5, 6, 7
"""Exit codes, the same for all commands."""
RELEASE_S = 5.0
"""How often an API server that does not answer is asked again which release it is."""


def usable_access(settings: ClusterSettings) -> "Access":
    """Where the API server is; or the command ends with the reason."""
    try:
        return settings.access()
    except Malformed as malformed:
        raise complain("No usable kubeconfig", str(malformed), "kubectl config view", USAGE) from None


def connected(settings: ClusterSettings, fields: FieldValidation = FieldValidation.WARN) -> "Client":
    """A client of the API server; or the command ends with the reason."""
    from carrel.kubernetes.client import Client
    from carrel.kubernetes.http_transport import HttpTransport

    return Client(HttpTransport(usable_access(settings)), fields)


def serve_door(
    name: str, settings: ServingSettings, serve: "Callable[[Client, asyncio.Event], Awaitable[None]]"
) -> None:
    """Runs a door on a cluster, until SIGINT or SIGTERM sets the event it is given; or ends with the reason."""
    log_to_stderr(settings.log_level)
    client = connected(settings, settings.field_validation)

    async def with_client(stop: asyncio.Event) -> None:
        async with contextlib.aclosing(client), supported(client, stop):
            await serve(client, stop)

    run_until_signalled(name, settings, with_client)


@contextlib.asynccontextmanager
async def supported(client: "Client", stop: asyncio.Event) -> AsyncIterator[None]:
    """While a door serves, its API server is asked which release it is. If that is too old, the event is set and, when
    the door has left, the command ends with the reason. A server that cannot be reached keeps no door from its probes.
    """
    checking = asyncio.create_task(_why_unsupported(client))
    checking.add_done_callback(lambda done: stop.set() if not done.cancelled() and done.result() else None)
    try:
        yield
        why = checking.result() if checking.done() else ""
    finally:
        checking.cancel()
    if why:
        raise complain("This Kubernetes is too old for Carrel", why, "docs/compatibility.md", UNAVAILABLE)


async def _why_unsupported(client: "Client") -> str:
    """Empty if Carrel runs on this API server. Waits for its answer."""
    while True:
        try:
            return why_unsupported(await client.release())
        except (ClusterError, Malformed):
            await asyncio.sleep(RELEASE_S)  # the watches tell why the API server cannot be asked


def run_until_signalled(
    name: str, settings: ServingSettings, serve: Callable[[asyncio.Event], Awaitable[None]]
) -> None:
    """Runs a door until SIGINT or SIGTERM sets the event it is given; or ends with the reason."""
    import uvloop

    async def until_signalled() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(stop)

    log_to_stderr(settings.log_level)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(until_signalled())
    except OSError as error:
        where = f"{settings.bind_address}:{settings.port}"
        raise complain(f"Cannot listen on {where}", str(error), f"carrel {name} --port 0", UNAVAILABLE) from None
