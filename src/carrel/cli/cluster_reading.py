"""Reads a cluster once and rebuilds the ledger from it; what cannot be read ends the command with the reason."""

import asyncio
import json
from typing import Any, Protocol

import typer
import yaml

from carrel.cli.settings import Format
from carrel.command_errors import FORBIDDEN, NOT_FOUND, UNAVAILABLE, command_failed
from carrel.dialects.options import DialectOptions
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError, Forbidden, NotFound
from carrel.kubernetes.config import Access
from carrel.kubernetes.http_transport import HttpTransport
from carrel.leases.cluster_state import ClusterOptions, ClusterState


class Question(Protocol):
    """Settings that name a cluster's rules."""

    @property
    def carrel_namespace(self) -> str: ...

    def dialect_options(self) -> DialectOptions: ...


def read_cluster(settings: Question, access: Access) -> ClusterState:
    try:
        return asyncio.run(_read(settings, access))
    except Forbidden as error:
        raise command_failed(
            "Not allowed to read the cluster", str(error), "kubectl auth can-i list pods -A", FORBIDDEN
        ) from None
    except NotFound as error:
        why = f"{error}: Carrel is not installed there"
        raise command_failed("This cluster has no GpuNodeStatus", why, "kubectl get crd", NOT_FOUND) from None
    except ClusterError as error:
        raise command_failed(
            f"No answer from {access.server}", str(error), "kubectl cluster-info", UNAVAILABLE
        ) from None


async def _read(settings: Question, access: Access) -> ClusterState:
    client = Client(HttpTransport(access))
    try:
        carrel = ClusterState(
            client, ClusterOptions(namespace=settings.carrel_namespace, dialect_options=settings.dialect_options())
        )
        await carrel.informers.read_once()
        carrel.cluster_ledger.mark_silent_agents(carrel.options.now())
        return carrel
    finally:
        await client.aclose()


def show(document: Any, output: Format) -> None:
    """For programs."""
    if output is Format.JSON:
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        typer.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)
