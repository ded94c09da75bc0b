"""`carrel scheduler-config`."""

from dataclasses import dataclass
from typing import Annotated

import typer

MARGIN_S = 15
"""For the writes of a bind after it has waited for its gang."""


@dataclass(frozen=True)
class SchedulerConfigSettings:
    url: Annotated[str, typer.Option(help="Where kube-scheduler finds the extender.")] = "http://127.0.0.1:39999"
    """In the same pod."""
    kubeconfig: Annotated[str, typer.Option(help="Path of kube-scheduler's own kubeconfig.")] = ""
    """Without it kube-scheduler uses its ServiceAccount."""
    gang_timeout: Annotated[
        int, typer.Option(help="The extender's --gang-timeout, in seconds.", min=1, envvar="CARREL_GANG_TIMEOUT")
    ] = 120
    """kube-scheduler must wait longer than the extender. Otherwise it would give up binds that succeed."""
    peers: Annotated[
        bool,
        typer.Option("--peers/--no-peers", help="Serve the names of peers' schedulers too, such as kai-scheduler."),
    ] = True
    """A pod without a GPU that names one would wait for ever where the peer does not run. Where it runs: --no-peers."""


def scheduler_config(settings: SchedulerConfigSettings) -> None:
    """Print the configuration of the kube-scheduler that asks Carrel: profile `gpu-scheduler`.

    The names of peers' schedulers are served as well: a pod that names one and asks for no GPU must not wait for ever.

    kube-scheduler asks Carrel about every pod of these profiles: claims and fractions have no resource to select by.

    Examples:

      carrel scheduler-config > scheduler.yaml

      kube-scheduler --config scheduler.yaml
    """
    import yaml

    from carrel.scheduling import scheduler_config as config

    extender = config.Extender(settings.url, settings.gang_timeout + MARGIN_S)
    peers = config.PEERS_SERVED if settings.peers else ()
    printed = config.scheduler_config(extender, settings.kubeconfig, peers)
    typer.echo(yaml.safe_dump(printed, sort_keys=False), nl=False)
