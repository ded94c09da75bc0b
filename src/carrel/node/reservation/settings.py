"""The settings of the program in a reservation pod."""

from dataclasses import dataclass

from carrel.option_fields import option, setting
from carrel.settings import ClusterSettings, LogLevel


@dataclass(frozen=True)
class ReservationSettings(ClusterSettings):
    pod_name: str = option("", "The pod of this process.", envvar="POD_NAME", show_default=False)
    """From the downward API. The variables have KAI's names, so that its manifests work."""
    pod_namespace: str = option("", "The namespace of that pod.", envvar="POD_NAMESPACE", show_default=False)
    """As above."""
    log_level: LogLevel = setting(LogLevel.INFO, "How much is logged on stderr.")
    """As for every component."""
