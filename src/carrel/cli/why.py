"""`carrel why`. The work is done in `pod_answers`."""

from dataclasses import dataclass

from carrel.cli.complete import pods
from carrel.cli.options import BookingServiceSettings, PodQuerySettings
from carrel.option_fields import argument, option, setting


@dataclass(frozen=True)
class WhySettings(PodQuerySettings):
    pod: str = argument("", "The pod, as pod/NAME or NAME; default: all pods that wait.", autocompletion=pods)
    all_namespaces: bool = option(False, "Pods of all namespaces.", "--all-namespaces", "-A")
    booking_service: str = option(
        "",
        "URL of the booking service, which is asked if the cluster cannot be; default: the last login.",
        envvar="CARREL_URL",
    )
    """In a notebook nobody may read the cluster. The booking service knows the person's own pods."""
    token: str = setting("", "Token for the booking service.", show_default=False)
    insecure: bool = setting(False, "Send the token without TLS, even to another machine.")
    hub_token: str = option(
        "", "Token of a notebook, if there is no login.", envvar="JUPYTERHUB_API_TOKEN", hidden=True
    )

    def booking_settings(self) -> BookingServiceSettings:
        return BookingServiceSettings(self.booking_service, self.token, self.insecure, self.hub_token)


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
