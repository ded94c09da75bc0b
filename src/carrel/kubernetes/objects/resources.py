"""Where each kind lives in the Kubernetes API. Spelled once, here."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from carrel.kubernetes.objects import shapes

V_co = TypeVar("V_co", covariant=True)


# No slots: on Python 3.11 a frozen slotted generic cannot be made as `Resource[Shape](…)`.
@dataclass(frozen=True)
class Resource(Generic[V_co]):
    """One kind of object. The type parameter is the shape (see `shapes`) in which its objects are read in bulk."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection or, with a name, of one object. No namespace: all of them."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


PODS = Resource[shapes.Pod]("", "v1", "pods", "Pod")
NODES = Resource[shapes.NodeObject]("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource[shapes.Namespace]("", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Resource[shapes.EventObject]("", "v1", "events", "Event")
CONFIG_MAPS = Resource[shapes.ConfigMap]("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource[shapes.Object]("", "v1", "secrets", "Secret")
SERVICE_ACCOUNTS = Resource[shapes.Object]("", "v1", "serviceaccounts", "ServiceAccount")
SERVICES = Resource[shapes.Object]("", "v1", "services", "Service")
LEASES = Resource[shapes.Lease]("coordination.k8s.io", "v1", "leases", "Lease")
PRIORITY_CLASSES = Resource[shapes.PriorityClass](
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
)
MUTATING_WEBHOOKS = Resource[shapes.Object](
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
CRDS = Resource[shapes.Object](
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
TOKEN_REVIEWS = Resource[shapes.Object]("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource[shapes.Object](
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)

# A kind of KAI's, which Carrel reads where it is installed.
POD_GROUPS = Resource[shapes.PodGroup]("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup")

# The kinds of the GpuClaim scheduler; Carrel serves them unchanged.
GPU_CLAIMS = Resource[shapes.GpuClaim]("gpu.scheduling", "v1", "gpuclaims", "GpuClaim")
GPU_NODE_STATUSES = Resource[shapes.GpuNodeStatus](
    "gpu.scheduling", "v1", "gpunodestatuses", "GpuNodeStatus", namespaced=False
)
