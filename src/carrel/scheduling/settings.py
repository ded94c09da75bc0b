"""The settings of the extender."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.caller_settings import CallerSettings
from carrel.option_fields import option, setting
from carrel.settings import SealSettings, ServingSettings

if TYPE_CHECKING:
    from carrel.http.serving import Address

LAST_PORT = 65535


@dataclass(frozen=True)
class ExtenderSettings(SealSettings, CallerSettings, ServingSettings):
    port: int = option(39999, "Port to listen on; 0: any free one.", envvar=["CARREL_PORT", "PORT"], min=0, max=65535)
    """gpushare's own port and variable, so that a scheduler that is configured for gpushare finds this extender."""
    tls_folder: Path | None = setting(
        None, "Folder with tls.crt and tls.key, read again when they change; without it: plain HTTP."
    )
    """Where kube-scheduler runs beside the extender, in one pod, nobody is between them."""
    health_address: str = setting(
        "", "Where probes and Prometheus find this process besides, such as 0.0.0.0:39995; empty: nowhere else."
    )
    """Whoever reaches the extender may place pods, so beside kube-scheduler it listens on loopback. Probes come from
    outside of the pod."""

    @property
    def probed_by_tls(self) -> bool:
        return self.tls_folder is not None

    def health(self) -> "Address | None":
        """Raises `Malformed`."""
        from carrel.http.serving import Address
        from carrel.parsing.malformed import Malformed

        if not self.health_address:
            return None
        host, _, port = self.health_address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > LAST_PORT:
            raise Malformed("--health-address", "the address", self.health_address, "an address and a port")
        return Address(host.strip("[]"), int(port))
