"""The command: the embedded Kubernetes API on a loopback port, for kubectl and any other client."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

HELP = """Serve a Kubernetes API, in memory, for kubectl and other clients.

It imitates Kubernetes 1.37. All objects are lost when it ends. It has no users: everybody who reaches the port may
do anything. It has no kubelet: pods are objects, no container runs, and there are no logs.

Examples:

  {program}

  {program} --tls --kubeconfig embedded.kubeconfig --load my-pods.yaml

  kubectl --server http://127.0.0.1:8001 get pods -A -w
"""


def api_command(program: str) -> Callable[..., None]:
    """The command for typer. `program` is how its users call it: the examples in its help show that."""

    def api(
        port: Annotated[int, typer.Option(help="Port on loopback; 0 takes a free one.", min=0, max=65535)] = 8001,
        tls: Annotated[bool, typer.Option("--tls", help="Serve HTTPS with a certificate made for this run.")] = False,
        load: Annotated[
            list[Path] | None,
            typer.Option(help="Manifests (YAML or JSON) to load at the start; may be given several times."),
        ] = None,
        kubeconfig: Annotated[
            Path | None, typer.Option(help="Write a kubeconfig for this server to this file.")
        ] = None,
    ) -> None:
        import asyncio

        from kubernetes_in_memory.run import StartFailed, run

        try:
            asyncio.run(run(port=port, tls=tls, manifests=load or [], kubeconfig=kubeconfig))
        except StartFailed as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from error

    api.__doc__ = HELP.format(program=program)
    return api
