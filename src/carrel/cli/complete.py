"""What the shell completes: models, bookings and pods. It is silent, and gives up soon, where nobody answers."""

from collections.abc import Callable, Iterator
from typing import Any

import typer

PATIENCE_S = 1.0
"""Whoever presses the key waits for it."""


def models(ctx: typer.Context) -> list[tuple[str, str]]:
    return [(each["model"], f"{each['gpus']} GPUs") for each in _asked(ctx, "/models")]


def bookings(ctx: typer.Context) -> list[tuple[str, str]]:
    from carrel.cli.booking_text import booking_name
    from carrel.ids import short_id

    found = _asked(ctx, "/bookings?user=me&with_groups=true&newest_first=true&limit=20")
    return [(short_id(each["id"]), booking_name(each)) for each in found]


def pods(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those of the namespace; where the cluster may not be read, a person's own pods, which the service knows."""
    prefix = "pod/" if incomplete.startswith("pod/") else ""
    names = _silently(lambda: _in_cluster(ctx)) or [each["pod"].partition("/")[2] for each in _asked(ctx, "/pods")]
    return sorted({f"{prefix}{name}" for name in names})


def _asked(ctx: typer.Context, target: str) -> list[Any]:
    from carrel.cli.booking_client import BookingClient, is_safe, known_login
    from carrel.cli.options import BookingServiceSettings

    given = {name: ctx.params.get(name) for name in ("token", "insecure", "hub_token")}
    given["server"] = ctx.params.get("booking_service", ctx.params.get("server"))
    settings = BookingServiceSettings(**{name: value for name, value in given.items() if value})
    login = known_login(settings)
    if not login.token or not is_safe(login.server, settings.insecure):
        return []
    client = BookingClient(login, PATIENCE_S)
    return _silently(lambda: client.once("GET", f"/api/v1{target}")[1]["items"])


def _in_cluster(ctx: typer.Context) -> list[str]:
    import asyncio

    from carrel.kubernetes.client import Client
    from carrel.kubernetes.cluster import Selection
    from carrel.kubernetes.http_transport import HttpTransport
    from carrel.kubernetes.objects.resources import PODS
    from carrel.settings import ContextSettings

    given = {name: ctx.params.get(name) for name in ("kubeconfig", "context", "server")}
    access = ContextSettings(**{name: value for name, value in given.items() if value}).access()

    async def names() -> Iterator[str]:
        client = Client(HttpTransport(access))
        try:
            found = await client.list(PODS, Selection(ctx.params.get("namespace") or access.namespace))
            return (each.metadata.name for each in found.items)
        finally:
            await client.aclose()

    return [*asyncio.run(asyncio.wait_for(names(), PATIENCE_S))]


def _silently(ask: Callable[[], list[Any]]) -> list[Any]:
    """Whatever goes wrong, the person sees their line as it was."""
    try:
        return ask()
    except Exception:
        return []
