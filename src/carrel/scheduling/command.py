"""`carrel extender`: the ledger over HTTP, for kube-scheduler.

It answers filter, prioritize and bind, keeps its ledger equal to the cluster, and holds nothing that is not written
there: any number of replicas may run, and any of them may die.
"""

from carrel.scheduling.settings import ExtenderSettings

__all__ = ["ExtenderSettings", "extender"]


def extender(settings: ExtenderSettings) -> None:
    """Answer kube-scheduler: which nodes have room, which is best, and bind.

    Every option may also be given as an environment variable, as shown beside it; an option wins.
    What kube-scheduler must be told is printed by `carrel scheduler-config`.

    Examples:

      carrel extender

      carrel extender --port 12345 --memory-unit GiB --placement spread

      carrel extender --server http://127.0.0.1:8001 --log-level debug
    """
    from carrel.scheduling.run import run

    run(settings)
