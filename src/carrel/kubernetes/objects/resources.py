"""Where each of Kubernetes' own kinds is in its API, and the class that its objects are decoded into."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from carrel.kubernetes.objects import kinds

V_co = TypeVar("V_co", bound=kinds.Object, covariant=True)


@dataclass(frozen=True, slots=True)
class Resource(Generic[V_co]):
    """One kind of object."""

    object_type: type[V_co]
    """What lists and watches decode its objects into; `kinds.Object` keeps the metadata only."""
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


PODS = Resource(kinds.Pod, "", "v1", "pods", "Pod")
NODES = Resource(kinds.NodeObject, "", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource(kinds.Namespace, "", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Resource(kinds.EventObject, "", "v1", "events", "Event")
CONFIG_MAPS = Resource(kinds.ConfigMap, "", "v1", "configmaps", "ConfigMap")
SECRETS = Resource(kinds.Object, "", "v1", "secrets", "Secret")
SERVICE_ACCOUNTS = Resource(kinds.Object, "", "v1", "serviceaccounts", "ServiceAccount")
SERVICES = Resource(kinds.Object, "", "v1", "services", "Service")
VOLUME_CLAIMS = Resource(kinds.Object, "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
DEPLOYMENTS = Resource(kinds.Object, "apps", "v1", "deployments", "Deployment")
DAEMON_SETS = Resource(kinds.Object, "apps", "v1", "daemonsets", "DaemonSet")
LEASES = Resource(kinds.Lease, "coordination.k8s.io", "v1", "leases", "Lease")
PRIORITY_CLASSES = Resource(
    kinds.PriorityClass, "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
)
RUNTIME_CLASSES = Resource(kinds.RuntimeClass, "node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
MUTATING_WEBHOOKS = Resource(
    kinds.Object,
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS = Resource(
    kinds.Object,
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_POLICIES = Resource(
    kinds.Object,
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    namespaced=False,
)
VALIDATING_POLICY_BINDINGS = Resource(
    kinds.Object,
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
CLUSTER_ROLES = Resource(
    kinds.Object, "rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False
)
CLUSTER_ROLE_BINDINGS = Resource(
    kinds.Object, "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
ROLES = Resource(kinds.Object, "rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource(kinds.Object, "rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CRDS = Resource(
    kinds.Object,
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
TOKEN_REVIEWS = Resource(kinds.Object, "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SELF_SUBJECT_REVIEWS = Resource(
    kinds.Object, "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
SUBJECT_ACCESS_REVIEWS = Resource(
    kinds.Object, "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
