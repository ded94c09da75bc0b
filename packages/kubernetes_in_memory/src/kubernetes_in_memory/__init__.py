"""A Kubernetes API server in one process, in memory: for tests, for demos, and to try things out.

It imitates Kubernetes 1.37 and runs no controllers except those that deletion needs. Reading order:

    messages handler                   one HTTP call as values; one call in, one answer out
    kinds crds                         which kinds are served
    request_info auth                  what a request asks for, and by which user
    body_decoding fields protobuf      a body becomes a tree of known fields
    malformed_input                    the error for a patch, a selector or a quantity that cannot be read
    objects causes status              the rules for all kinds, and the errors
    kind_rules                         the rules for one kind:
    pods pod_checks built_in_rules event_rules volume_rules device_rules
    name_generator                     uids and generated names
    store                              objects, versions, history
    reads resource_version_options selectors    get, list, pages, selectors
    watch                              changes, once and in order; streaming lists
    writes patch_types                 create, update, patch: the kinds of patch, and who owns which field
    json_patch merge_patch merge_keys apply ownership
    deletion garbage_collector         deletion, and what it causes
    subresources pod_subresources      binding and eviction; parts of pods
    reviews                            TokenReview, SubjectAccessReview, tokens
    admission webhook_client           which webhooks are called, and how
    crd_validation object_validation   the schemas of custom resources
    discovery openapi                  what clients read about the API itself
    representations tables             what `kubectl get` shows:
    columns pod_columns json_path times quantities
    http_server certificates           the API on a socket
    command run kubeconfig manifests   the API as a process
    testing pytest_plugin              the API in a thread, and as a fixture
    faults                             refused writes, lost answers, cut watches
    __main__                           `python -m kubernetes_in_memory`

Differences from kube-apiserver:
- no CEL, so matchConditions of webhooks are refused, and admission policies are not served;
- no conversion between the versions of a custom resource: they share one schema. Field ownership begins with the
  first apply. There is one event loop, and all objects are lost when the process ends;
- answers are JSON, also to clients that prefer protobuf (they all read JSON too);
- no kubelet: logs, exec, attach and port-forward are refused with that reason, and nothing acts on a resize;
- volumes, devices and Events are only stored: nothing provides, protects or expires them;
- a CRD is served as soon as it is created. kube-apiserver may answer 429 for a moment.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kubernetes_in_memory.handler import EmbeddedApi, Settings
    from kubernetes_in_memory.messages import HttpRequest, HttpResponse

__all__ = ["EmbeddedApi", "HttpRequest", "HttpResponse", "Settings"]

_MODULES = {
    "EmbeddedApi": "kubernetes_in_memory.handler",
    "Settings": "kubernetes_in_memory.handler",
    "HttpRequest": "kubernetes_in_memory.messages",
    "HttpResponse": "kubernetes_in_memory.messages",
}


def __getattr__(name: str) -> Any:
    """Imported when it is first used: a program that only has the command among others does not wait for it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found
