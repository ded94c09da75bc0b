"""`carrel scheduler-config`."""

from dataclasses import dataclass

import typer

from carrel.caller_settings import PathSecretSettings
from carrel.command_errors import USAGE, command_failed
from carrel.option_fields import option


@dataclass(frozen=True)
class SchedulerConfigSettings(PathSecretSettings):
    url: str = option("http://127.0.0.1:39999", "Where kube-scheduler finds the extender.")
    """In the same pod."""
    kubeconfig: str = option("", "Path of kube-scheduler's own kubeconfig.")
    """Without it kube-scheduler uses its ServiceAccount."""
    peers: bool = option(True, "Serve the names of peers' schedulers too, such as kai-scheduler.", "--peers/--no-peers")
    """A pod without a GPU that names one would wait for ever where the peer does not run. Where it runs: --no-peers."""

    cpu: bool = option(
        False, "Of another kube-scheduler, for pods without a GPU: profile carrel-cpu, asks for scores only.", "--cpu"
    )
    """Such pods take the CPU that GPUs need. By default Carrel is not asked about them."""

    server_ca: str = option("", "Path of the authority of the extender's certificate, as kube-scheduler sees it.")
    client_certificate: str = option("", "Path of the certificate that kube-scheduler shows to the extender.")
    client_key: str = option("", "Path of the key of that certificate.")
    """For an extender with --client-ca."""


def scheduler_config(settings: SchedulerConfigSettings) -> None:
    """Print the configuration of the kube-scheduler that asks Carrel: profile `gpu-scheduler`.

    The names of peers' schedulers are served as well: a pod that names one and asks for no GPU must not wait for ever.

    kube-scheduler asks Carrel about every pod of these profiles: claims and fractions have no resource to select by.

    Examples:

      carrel scheduler-config > scheduler.yaml

      kube-scheduler --config scheduler.yaml

      CARREL_PATH_SECRET=$(cat secret) carrel scheduler-config --url http://10.0.0.7:39999

      carrel scheduler-config --url https://carrel-extender:39999 --server-ca ca.crt --client-certificate tls.crt
      --client-key tls.key

      carrel scheduler-config --cpu > cpu-scheduler.yaml
    """
    import yaml

    from carrel.scheduling import scheduler_config as config

    files = {"caFile": settings.server_ca, "certFile": settings.client_certificate, "keyFile": settings.client_key}
    tls = {word: path for word, path in files.items() if path}
    try:
        secrets = settings.path_secrets()
    except ValueError as error:
        raise command_failed("No usable secret", str(error), "carrel scheduler-config --help", USAGE) from None
    secret = secrets[0].decode() if secrets else ""
    extender = config.Extender(settings.url, secret, tls)
    peers = config.PEERS_SERVED if settings.peers else ()
    printed = (
        config.cpu_scheduler_config(extender, settings.kubeconfig)
        if settings.cpu
        else config.scheduler_config(extender, settings.kubeconfig, peers)
    )
    typer.echo(yaml.safe_dump(printed, sort_keys=False), nl=False)
