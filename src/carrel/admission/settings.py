"""The settings of the webhook."""

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.caller_settings import CallerSettings
from carrel.dialects.options import HideFrom
from carrel.option_fields import option, setting
from carrel.settings import CudaSettings, DeviceListSettings, HubSettings, PodSettings

if TYPE_CHECKING:
    from carrel.cluster.options import ClusterOptions

SERVICE = "carrel-webhook"
CONFIGURATION = "carrel"
"""As in `manifests/webhooks.yaml`."""


class PluginMode(Enum):
    NATIVE = "native"
    COEXIST = "coexist"


@dataclass(frozen=True)
class WebhookSettings(HubSettings, CallerSettings, CudaSettings, DeviceListSettings, PodSettings):
    port: int = setting(8443, "Port to listen on; 0: any free one.", min=0, max=65535)
    """Its Service maps 443 to it: no privilege is needed to listen here."""
    trusted: str = option(
        "", "Users who may write what only Carrel writes, joined by commas.", envvar="CARREL_TRUSTED_USERS"
    )
    """Besides Carrel's own controller. The policies have the same list."""
    owner_annotation: str = setting("owner", "Annotation of a Namespace that names its owner.")
    """The owner of pods that a Deployment or a Job creates. Only users who may write Namespaces can set it."""
    username_prefix: str = setting("", "What the API server puts before people's names, as oidc:.")
    """Bookings are made under the name without it."""
    strict: bool = setting(False, "Refuse GPU pods without an owner.", "--strict/--lenient")
    """Lenient: such a pod is opportunistic, and no booking covers it."""
    mode: PluginMode = setting(
        PluginMode.NATIVE, "Which device plugin hands out whole GPUs: Carrel's (native), or NVIDIA's (coexist)."
    )
    """NVIDIA's plugin tells the containers which GPU they have; the webhook must not write that variable then."""
    hide_gpus_from: HideFrom = setting(
        HideFrom.NVIDIA_PODS,
        "Which containers are told to see no GPU: the others of GPU pods; also those of other pods that "
        "NVIDIA's runtime may show one; or those of all other pods.",
    )
    """All pods: needed where NVIDIA's runtime is the default one of the nodes, because then an image alone may use any
    GPU. The webhook configuration must call the webhook for these pods: docs/admission.md."""
    tls_folder: Path | None = setting(None, "Folder with tls.crt and tls.key that others renew.")
    """For cert-manager, whose injector also tells the API server whom to trust. Without it, Carrel does both."""
    configuration: str = setting(CONFIGURATION, "Name of the webhook configuration that gets the authority.")
    """MAIA's is called gpu-booking-webhook."""

    def cluster_options(self) -> "ClusterOptions":
        from carrel.cluster.options import ClusterOptions

        return ClusterOptions(
            self.carrel_namespace,
            replace(self.dialect_options(), cuda_devices=self.cuda_devices),
            seal=self.seal(),
            tier_policy=self.tier_policy(),
            reads_makers=False,
            holders=self.holders(),
        )

    @property
    def tls_secret(self) -> str:
        """The Secret of Carrel's own certificates; in MAIA's place it has MAIA's name."""
        return f"{SERVICE if self.configuration == CONFIGURATION else self.configuration}-tls"
