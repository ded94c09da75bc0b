"""An API server with Carrel's rules, for tests of what it does by itself."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from carrel.dialects.protected_keys import Writer
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS, NAMESPACES, PRIORITY_CLASSES, RUNTIME_CLASSES
from carrel.manifests import priority_classes, rbac, webhooks
from testbed.control_plane import ApiServer
from testbed.control_plane import api_server as start_api_server
from testbed.fixtures import shown_run
from tests.e2e.pods import eventually
from tests.e2e.webhook import RecordingWebhook, UserClient, install_policies, unadmitted_pod

Json = dict[str, Any]

EVE, TRUSTED = "eve@lab.example", "admin"
CARREL = "system:serviceaccount:carrel:carrel-controller"
EXTENDER = "system:serviceaccount:carrel:carrel-extender"
GPU = {"nvidia.com/gpu": "1"}
PODS = "/api/v1/namespaces/default/pods"
MANY = 10_000


class RulesCluster:
    """An API server with Carrel's rules, and a webhook that only looks on."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.eve, self.carrel, self.trusted = (UserClient(api, name) for name in (EVE, CARREL, TRUSTED))
        self.accounts = {Writer.CONTROLLER: self.carrel, Writer.EXTENDER: UserClient(api, EXTENDER)}
        api.call("POST", NAMESPACES.path(), {"metadata": {"name": "carrel"}})
        # As in a cluster where Carrel is installed later.
        self.post(a_pod("before", annotations={"terminate-at": "2099-01-01T00:00:00Z"}, limits=GPU))
        for each in priority_classes():
            api.call("POST", PRIORITY_CLASSES.path(), each)
        for name in ("nvidia", "fast"):
            runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}
            api.call("POST", RUNTIME_CLASSES.path(), {**runtime, "handler": "nvidia"})
        self.witness = RecordingWebhook()
        (configuration,) = webhooks()
        for entry in configuration["webhooks"]:
            entry["clientConfig"] = self.client_config(entry["name"])
            entry["timeoutSeconds"] = 30  # here it matters who is asked about, not how soon a busy machine answers
        self.configuration: Json = api.call("POST", MUTATING_WEBHOOKS.path(), configuration)
        eventually(lambda: self.asked(unadmitted_pod("until-it-is-asked")))
        install_policies(api, TRUSTED)

    def client_config(self, entry: str) -> Json:
        """At another path for each entry, so that the witness can tell them apart."""
        return {**self.witness.client_config, "url": f"{self.witness.client_config['url']}/{entry}"}

    def install_roles(self, *names: str) -> None:
        """Those of Carrel's that have such a name; without names all of them."""
        roles = [each for each in rbac() if not names or each["metadata"]["name"] in names]
        roles.sort(key=lambda each: each["kind"] != "Namespace")
        self.api.kubectl(
            "apply", "--filename", "-", given=json.dumps({"kind": "List", "apiVersion": "v1", "items": roles})
        )

    def token(self, spec: Json) -> str:
        """Of the agents' account."""
        path = "/api/v1/namespaces/carrel/serviceaccounts/carrel-agent/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.api.call("POST", path, request)["status"]["token"])

    def post(self, pod: Json, who: UserClient | None = None, dry: bool = False) -> tuple[int, Json]:
        return (who or self.eve).call("POST", f"{PODS}{'?dryRun=All' if dry else ''}", pod)

    def asked(self, pod: Json, who: UserClient | None = None) -> bool:
        """Whether the webhook is asked about it."""
        return bool(self.asked_by(pod, who))

    def asked_by(self, pod: Json, who: UserClient | None = None, path: str = PODS) -> set[str]:
        """By which entries of its configuration."""
        self.witness.paths.pop(pod["metadata"]["name"], None)
        (who or self.eve).call("POST", f"{path}?dryRun=All", pod)
        return {found.rpartition("/")[2] for found in self.witness.paths.get(pod["metadata"]["name"], ())}


@contextmanager
def rules_cluster(name: str) -> Iterator[RulesCluster]:
    with shown_run(name) as run, start_api_server(run) as api:
        api.start_controllers(
            ["namespace", "validatingadmissionpolicy-status-controller", "clusterrole-aggregation-controller"]
        )
        yield RulesCluster(api)


def a_pod(name: str, limits: Json | None = None, **metadata: Any) -> Json:
    """For the scheduler that knows the GPUs, as if the webhook had seen it."""
    container = {"name": "main", "image": "work", "resources": {"limits": limits or {}}}
    spec = {"containers": [container], "schedulerName": "gpu-scheduler"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def a_plain_pod(name: str, **spec: Any) -> Json:
    """It asks for no GPU."""
    pod = a_pod(name)
    pod["spec"] |= {"schedulerName": "default-scheduler", **spec}
    return pod
