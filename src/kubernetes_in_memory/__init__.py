"""A small Kubernetes API server in one process: for the demo, for tests, and for playing.

It imitates Kubernetes 1.37, keeps objects in memory and runs no controllers except the ones that deletion needs. Read
it in this order:

    kinds       what is served, and what CRDs add (crds)     store       objects, versions, history
    calls       what a request asks, and by whom (auth)      reads       get, list, pages, selectors (list_options)
    bodies      from a body to a tree of known fields        watch       changes, once and in order; streaming lists
    objects     what holds for every kind                    writes      create, update, patch (patches, apply)
    rules       what holds for one kind (pods, …)            deletion    deletion, and what goes with it (collector)
    admission   webhooks, and calling them (webhooks)        subresources  binding and eviction (pod_parts)
    discovery   what there is (openapi)                      tables      what `kubectl get` shows (columns)
    forms       whole objects, tables or metadata            protobuf    bodies of clients that send nothing else
    handler     one call in, one answer out                  http        the same on a socket
    faults      bad days, by seed

Where it is not like kube-apiserver:
- no CEL, so matchConditions of webhooks are refused, and admission policies are not served, let alone enforced;
- no conversion between the versions of a custom resource (they share one shape); no ownership of fields before the
  first apply; one event loop; everything is gone when the process ends;
- answers are JSON, also to clients that like protobuf better (they all read JSON too);
- no kubelet: logs, exec, attach and port-forward are refused with that reason, and nobody acts on a resize;
- volumes, devices and Events are only kept: nobody provides, protects or expires them;
- a CRD is served as soon as it is made. kube-apiserver may answer 429 for a moment, which the client waits out.
"""

from kubernetes_in_memory.handler import EmbeddedApi, Settings
from kubernetes_in_memory.messages import HttpRequest, HttpResponse

__all__ = ["EmbeddedApi", "HttpRequest", "HttpResponse", "Settings"]
