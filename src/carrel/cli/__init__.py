"""Commands for people: why a pod waits, what each card has, who holds what, and how to set up kube-scheduler.

They read the cluster once, rebuild the ledger from it as every door does, answer, and change nothing. The commands for
bookings, in `bookings`, ask the booking service instead, and do change things.
"""

from carrel.cli.settings import ExplainSettings, InspectSettings, SchedulerConfigSettings, WhySettings

__all__ = [
    "ExplainSettings",
    "InspectSettings",
    "SchedulerConfigSettings",
    "WhySettings",
    "explain",
    "inspect",
    "scheduler_config",
    "why",
]


def why(settings: WhySettings) -> None:
    """Say why a pod waits: what is missing, and who holds it.

    Without a pod: of every pod that waits for a card.

    Examples:

      carrel why pod/train-0 -n lab

      carrel why -A
    """
    from carrel.cli.why import say_why

    say_why(settings)


def explain(settings: ExplainSettings) -> None:
    """Show, for each node and card, what it has and what a pod misses there.

    Examples:

      carrel explain pod/train-0 -n lab
    """
    from carrel.cli.why import say_all

    say_all(settings)


def inspect(settings: InspectSettings) -> None:
    """Show who holds how much of each card, as `kubectl inspect gpushare` does, for pods of every dialect.

    Examples:

      carrel inspect

      carrel inspect dgx-1 -d

      carrel inspect -o json
    """
    from carrel.cli.inspect import show

    show(settings)


def scheduler_config(settings: SchedulerConfigSettings) -> None:
    """Print the configuration of the kube-scheduler that asks Carrel: profile `gpu-scheduler`.

    It is asked about every pod of that profile, because claims and fractions name no resource by which it could tell.

    Examples:

      carrel scheduler-config > scheduler.yaml

      kube-scheduler --config scheduler.yaml
    """
    from carrel.cli.scheduler_config import print_config

    print_config(settings)
