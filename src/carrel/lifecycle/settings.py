"""The settings of the controller."""

from dataclasses import dataclass

from carrel import __version__
from carrel.option_fields import secret, setting
from carrel.settings import PodSettings


@dataclass(frozen=True)
class ControllerSettings(PodSettings):
    port: int = setting(39998, "Port to listen on; 0: any free one.", min=0, max=65535)
    """Below the extender's, so that both can run on one machine."""
    adopt: bool = setting(False, "Record pods that have GPUs without a Lease, as `carrel adopt` does.")
    """Such pods hold their GPUs in any case. Off, because a record hides that another scheduler places pods."""
    terminator_port: int = setting(
        8080, "Port of the pod terminator, as MAIA's clients call it; 0: any free one.", min=0, max=65535
    )
    """MAIA's webhook calls http://pod-terminator:8080. Without a token or --terminator-for-all nothing listens."""
    terminator_token: str = secret("Bearer token that callers of the pod terminator need.")
    """MAIA's own webhook sends none."""
    terminator_for_all: bool = setting(False, "Let every caller use the pod terminator, without a token.")
    """MAIA's webhook sends no token. With this, every caller can end pods that have no booking."""

    reservation_image: str = setting(
        f"carrel:{__version__}", "Image of reservation pods, with Carrel in it; for nodes with NVIDIA's plugin."
    )
    """Carrel's own image, under the name by which the cluster's nodes pull it."""

    def serves_terminator(self) -> bool:
        return self.terminator_for_all or bool(self.terminator_token)
