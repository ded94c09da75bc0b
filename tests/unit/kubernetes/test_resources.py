"""The URL path of each kind."""

from typing import Any

import pytest

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES
from carrel.dialects.kai import POD_GROUPS
from carrel.kubernetes.objects import resources
from carrel.kubernetes.objects.resources import Resource


@pytest.mark.parametrize(
    ("resource", "path"),
    [
        (resources.PODS, "/api/v1/namespaces/lab/pods/x"),
        (resources.EVENTS, "/api/v1/namespaces/lab/events/x"),
        (resources.CONFIG_MAPS, "/api/v1/namespaces/lab/configmaps/x"),
        (resources.SECRETS, "/api/v1/namespaces/lab/secrets/x"),
        (resources.SERVICE_ACCOUNTS, "/api/v1/namespaces/lab/serviceaccounts/x"),
        (resources.SERVICES, "/api/v1/namespaces/lab/services/x"),
        (resources.NODES, "/api/v1/nodes/x"),
        (resources.NAMESPACES, "/api/v1/namespaces/x"),
        (resources.LEASES, "/apis/coordination.k8s.io/v1/namespaces/lab/leases/x"),
        (resources.PRIORITY_CLASSES, "/apis/scheduling.k8s.io/v1/priorityclasses/x"),
        (resources.MUTATING_WEBHOOKS, "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/x"),
        (resources.CRDS, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x"),
        (resources.TOKEN_REVIEWS, "/apis/authentication.k8s.io/v1/tokenreviews/x"),
        (resources.SUBJECT_ACCESS_REVIEWS, "/apis/authorization.k8s.io/v1/subjectaccessreviews/x"),
        (POD_GROUPS, "/apis/scheduling.run.ai/v2alpha2/namespaces/lab/podgroups/x"),
        (GPU_CLAIMS, "/apis/gpu.scheduling/v1/namespaces/lab/gpuclaims/x"),
        (GPU_NODE_STATUSES, "/apis/gpu.scheduling/v1/gpunodestatuses/x"),
    ],
    ids=lambda value: value.kind if isinstance(value, Resource) else "",
)
def test_an_object_has_its_path(resource: Resource[Any], path: str) -> None:
    assert resource.path("lab", "x") == path


def test_a_collection_of_all_namespaces_and_a_subresource_have_paths_too() -> None:
    assert resources.PODS.path() == "/api/v1/pods"
    assert resources.PODS.path("lab", "x", "binding") == "/api/v1/namespaces/lab/pods/x/binding"
