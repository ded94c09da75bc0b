"""Prints kube-scheduler's configuration."""

import typer
import yaml

from carrel.cli.settings import SchedulerConfigSettings
from carrel.scheduling.scheduler_config import Extender, scheduler_config

MARGIN_S = 15
"""For the writes of a bind after the wait for its gang."""


def print_config(settings: SchedulerConfigSettings) -> None:
    extender = Extender(settings.url, settings.gang_timeout + MARGIN_S)
    config = scheduler_config(extender, settings.kubeconfig)
    typer.echo(yaml.safe_dump(config, sort_keys=False), nl=False)
