"""The settings of the webhook."""

from dataclasses import dataclass
from pathlib import Path

from carrel.caller_settings import CallerSettings
from carrel.option_fields import setting
from carrel.settings import PodSettings

SERVICE = "carrel-webhook"
CONFIGURATION = "carrel"
"""As in `manifests/webhooks.yaml`."""


@dataclass(frozen=True)
class WebhookSettings(CallerSettings, PodSettings):
    port: int = setting(8443, "Port to listen on; 0: any free one.", min=0, max=65535)
    """Its Service maps 443 to it: no privilege is needed to listen here."""
    tls_folder: Path | None = setting(None, "Folder with tls.crt and tls.key that others renew.")
    """For cert-manager, whose injector also tells the API server whom to trust. Without it, Carrel does both."""
    configuration: str = setting(CONFIGURATION, "Name of the webhook configuration that gets the authority.")
    """MAIA's is called gpu-booking-webhook."""

    @property
    def probed_by_tls(self) -> bool:
        return True

    @property
    def tls_secret(self) -> str:
        """The Secret of Carrel's own certificates; in MAIA's place it has MAIA's name."""
        return f"{SERVICE if self.configuration == CONFIGURATION else self.configuration}-tls"
