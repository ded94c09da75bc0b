"""Starts the embedded API, loads manifests into it, and serves until SIGINT or SIGTERM. Open watches end then."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import typer

from kubernetes_in_memory import EmbeddedApi
from kubernetes_in_memory.http_server import Served, serve
from kubernetes_in_memory.kubeconfig import kubeconfig_for
from kubernetes_in_memory.manifests import load


class StartFailed(Exception):
    """The server cannot start. The message says why, and what helps."""


async def run(*, port: int, tls: bool, manifests: Sequence[Path], kubeconfig: Path | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    api = EmbeddedApi()
    try:
        loaded = await load(api, manifests)
        if loaded.problems:
            raise StartFailed("\n".join(loaded.problems))
        async with serve(api, port=port, tls=tls) as served:
            if kubeconfig is not None:
                _write(kubeconfig, kubeconfig_for(served))
            _print_address(served, loaded.count, kubeconfig)
            await stop.wait()
    except OSError as error:
        raise StartFailed(
            f"cannot serve on port {port}: {error.strerror or error}. Try another --port, or --port 0."
        ) from error
    finally:
        await api.aclose()


def _write(path: Path, text: str) -> None:
    try:
        path.touch(mode=0o600)
        path.write_text(text)
    except OSError as error:
        raise StartFailed(f"cannot write the kubeconfig {path}: {error.strerror}") from error


def _print_address(served: Served, loaded: int, kubeconfig: Path | None) -> None:
    if kubeconfig is not None:
        reach = f"kubectl --kubeconfig {kubeconfig}"
    elif served.certificate is not None:
        reach = f"kubectl --server {served.url} --insecure-skip-tls-verify"
    else:
        reach = f"kubectl --server {served.url}"
    typer.echo(f"Kubernetes API on {served.url}, in memory: all objects are lost when it stops (Ctrl-C).")
    if loaded:
        typer.echo(f"{loaded} objects loaded.")
    typer.echo(f"Try:  {reach} get pods -A -w")
