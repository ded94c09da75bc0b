"""Prints kube-scheduler's configuration."""

import typer
import yaml

from carrel.doors.cli.settings import SchedulerConfigSettings
from carrel.protocols import Malformed
from carrel.protocols.kubernetes.scheduler_config import Extender, scheduler_config
from carrel.settings import USAGE, complain

MARGIN_S = 15
"""For the writes of a bind after the wait for its gang."""


def print_config(settings: SchedulerConfigSettings) -> None:
    extender = Extender(settings.url, settings.gang_timeout + MARGIN_S)
    try:
        config = scheduler_config(settings.kubernetes, extender, settings.kubeconfig)
    except Malformed as malformed:
        advice = "carrel scheduler-config --kubernetes 1.25"
        raise complain("No configuration for this kube-scheduler", str(malformed), advice, USAGE) from None
    typer.echo(yaml.safe_dump(config, sort_keys=False), nl=False)
