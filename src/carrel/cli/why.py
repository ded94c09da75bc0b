"""`carrel why`. The work is done in `pod_answers`."""

from dataclasses import dataclass

from carrel.cli.complete import pods
from carrel.cli.options import BesideClusterSettings, PodQuerySettings
from carrel.option_fields import argument, option


@dataclass(frozen=True)
class WhySettings(BesideClusterSettings, PodQuerySettings):
    """In a notebook nobody may read the cluster. The booking service knows the person's own pods."""

    pod: str = argument("", "The pod, as pod/NAME or NAME; default: all pods that wait.", autocompletion=pods)
    all_namespaces: bool = option(False, "Pods of all namespaces.", "--all-namespaces", "-A")


def why(settings: WhySettings) -> None:
    """Say why a pod waits, or runs without a GPU: what is missing, who holds it until when, which booking covers it.

    Of who holds it, it says since when that is idle. Of a pod that has GPUs, it says whether it uses them.

    A booked pod may have GPUs asked back from opportunistic pods.

    Without a pod, it lists every pod that waits for a GPU.

    If you may not read the cluster, as in a notebook, it asks the booking service, which knows your own pods.

    Examples:

      carrel why pod/train-0 -n lab

      carrel why -A
    """
    from carrel.cli.pod_answers import print_why

    print_why(settings)
