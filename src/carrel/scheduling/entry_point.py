"""`carrel extender`: the ledger over HTTP, for kube-scheduler.

It answers filter, prioritize and bind, and keeps its ledger equal to the cluster. All state is in the cluster: any
number of replicas may run, and any of them may crash.
"""

from carrel.scheduling.settings import ExtenderSettings

__all__ = ["ExtenderSettings", "extender"]


def extender(settings: ExtenderSettings) -> None:
    """Answer kube-scheduler: which nodes have room, which is best, and bind.

    Every option may also be given as an environment variable, as shown beside it; an option wins.
    `carrel scheduler-config` prints the configuration that kube-scheduler needs.

    Examples:

      carrel extender

      carrel extender --port 12345 --config carrel.yaml

      carrel extender --server http://127.0.0.1:8001 --log-level debug
    """
    from carrel.scheduling.run import run

    run(settings)
