"""etcd and kube-apiserver; on demand kube-controller-manager and kube-schedulers. No root is needed.

Every call answers when the component is ready, and everything ends with the `with` block of `api_server`.
"""

import base64
import datetime
import json
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address
from pathlib import Path
from ssl import CERT_NONE, SSLContext, create_default_context
from typing import Any

import yaml

from testbed.build import component, etcd
from testbed.certificates import Authority
from testbed.clients import kubectl
from testbed.processes import Failed, Process
from testbed.runs import Run

LOOPBACK = IPv4Address("127.0.0.1")
ETCD, ETCD_PEERS, API_SERVER, CONTROLLERS, SCHEDULERS = range(5)
"""Which port of the slot each component uses. Schedulers use the rest, one each."""
MOST_SCHEDULERS = 8
"""At one time: a later one has the port of one that has ended."""
CALLS_PER_SECOND = 1000
"""Calls per second of a component; with the usual 20 a hundred hollow nodes wait for each other."""
COME_AGAIN_SECONDS = 60
"""How long a call is repeated that the API server answers with 'try again later'."""
CONTROLLER_MANAGER = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"
NODE_GRACE = "10m"
"""How long a node may say nothing. On a busy machine, renewing the Leases of hundreds of hollow nodes takes longer than
the usual 50 s, and then all of them would be tainted."""


@dataclass(frozen=True)
class Shape:
    """Options of an API server."""

    address: IPv4Address = LOOPBACK
    service_accounts: bool = False
    """Pods get a ServiceAccount and its token, as in production. Needs the controllers, which create the accounts."""
    shows_certificate: bool = False
    """The API server shows webhooks a client certificate of its authority."""
    feature_gates: str = ""
    """As `A=false,B=true`: those that differ from the defaults."""


class ApiServer:
    """A running etcd and kube-apiserver. Made by `api_server`."""

    def __init__(self, run: Run, shape: Shape, until: ExitStack) -> None:
        self.run = run
        self.slot = run.slot
        self.address = shape.address
        self.url = f"https://{shape.address}:{run.slot.ports[API_SERVER]}"
        self.authority = Authority(run.data / "pki", datetime.datetime.now(datetime.UTC))
        self.token = secrets.token_urlsafe(24)
        self._signing_key = self.authority.signing_key()
        self._until = until
        self._schedulers = 0
        self._start_etcd()
        self._start_api_server(shape)
        self.kubeconfig = self.kubeconfig_of("admin", ["system:masters"])
        """The administrator's, by client certificate."""
        self.token_kubeconfig = self.authority.kubeconfig(run.data / "token.kubeconfig", self.url, self.token)
        """The administrator's, by bearer token."""

    def kubeconfig_of(self, user: str, groups: Sequence[str] = ()) -> Path:
        file = self.run.data / f"{user.replace(':', '-')}.kubeconfig"
        return self.authority.kubeconfig(file, self.url, self.authority.client(user, groups))

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """What kubectl prints. Raises `Failed` with its error message."""
        command = [str(kubectl()), "--kubeconfig", str(self.kubeconfig), *arguments]
        outcome = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        if outcome.returncode != 0:
            raise Failed(f"kubectl {' '.join(arguments)}: {outcome.stderr.strip()}")
        return outcome.stdout

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One call as the administrator. Raises `urllib.error.HTTPError`, which is an OSError."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        deadline = time.monotonic() + COME_AGAIN_SECONDS
        while True:
            try:
                with urllib.request.urlopen(request, context=self._trust, timeout=30) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                # As for a moment after a custom resource was defined. An eviction's 429 is a disruption budget's word.
                wait_s = error.headers.get("Retry-After") if error.code == 429 and "/eviction" not in path else None
                if wait_s is None or time.monotonic() > deadline:
                    raise
            time.sleep(float(wait_s))

    def wait_for_namespace(self, name: str) -> None:
        """Until pods can be created there: the controllers have created the namespace's ServiceAccount."""

        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.process.wait_until(f"made a ServiceAccount in {name}", lambda: self.call("GET", account))

    def compact(self) -> None:
        """Removes all history from etcd, so that old resource versions and continue tokens expire."""
        anything = base64.b64encode(b"\0").decode()
        revision = self.ask_etcd("range", {"key": anything})["header"]["revision"]
        self.ask_etcd("compaction", {"revision": revision, "physical": True})

    def start(self, name: str, command: Sequence[str | Path]) -> Process:
        """A program that ends with this API server, before it."""
        process = Process.start(name, command, self.run.log(name))
        self._until.callback(process.stop)
        return process

    def start_controllers(self, controllers: Sequence[str] = ("*",)) -> Process:
        """kube-controller-manager with all, or only these, of its controllers."""
        port = self.slot.ports[CONTROLLERS]
        command: list[str | Path] = [
            component("kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig_of(CONTROLLER_MANAGER)}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            f"--controllers={','.join(controllers)}",
            f"--service-account-private-key-file={self._signing_key.key}",
            f"--root-ca-file={self.authority.certificate}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            f"--kube-api-qps={CALLS_PER_SECOND}",
            f"--kube-api-burst={CALLS_PER_SECOND}",
            f"--node-monitor-grace-period={NODE_GRACE}",
        ]
        process = self.start("kube-controller-manager", command)
        process.wait_until("healthy", lambda: _is_well(f"https://{LOOPBACK}:{port}/healthz"))
        return process

    def start_scheduler(
        self, scheduler_name: str = "default-scheduler", extenders: Sequence[Mapping[str, Any]] = ()
    ) -> Process:
        """A kube-scheduler for the pods that ask for `scheduler_name`."""
        port = self.slot.ports[SCHEDULERS + self._schedulers % MOST_SCHEDULERS]
        self._schedulers += 1
        configuration = self.run.data / f"{scheduler_name}.yaml"
        document: dict[str, Any] = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig_of(SCHEDULER)),
                "qps": CALLS_PER_SECOND,
                "burst": CALLS_PER_SECOND,
            },
            "leaderElection": {"leaderElect": False},
            "profiles": [{"schedulerName": scheduler_name}],
            "extenders": list(extenders),
        }
        configuration.write_text(yaml.safe_dump(document))
        command: list[str | Path] = [
            component("kube-scheduler"),
            f"--config={configuration}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
        ]
        process = self.start(scheduler_name, command)
        process.wait_until("healthy", lambda: _is_well(f"https://{LOOPBACK}:{port}/healthz"))
        return process

    def ask_etcd(self, call: str, body: Mapping[str, Any]) -> Any:
        """One call on its keys and values; keys and values are in base 64."""
        url = f"http://{LOOPBACK}:{self.slot.ports[ETCD]}/v3/kv/{call}"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as answer:
            return json.load(answer)

    def _start_etcd(self) -> None:
        url, peers = (f"http://{LOOPBACK}:{self.slot.ports[port]}" for port in (ETCD, ETCD_PEERS))
        command: list[str | Path] = [
            etcd(),
            f"--data-dir={self.run.data / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]
        self.etcd = self.start("etcd", command)
        self.etcd.wait_until("healthy", lambda: _is_well(f"{url}/health"))

    def _start_api_server(self, shape: Shape) -> None:
        hosts = [
            "localhost",
            *(f"kubernetes{end}" for end in ("", ".default", ".default.svc", ".default.svc.cluster.local")),
        ]
        serving = self.authority.server("kube-apiserver", [LOOPBACK, self.address, self.slot.services[1]], hosts)
        to_kubelets = self.authority.client("kube-apiserver-kubelet-client", ["system:masters"])
        tokens = self.run.data / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self.token},token-admin,token-admin,"system:masters"\n')
        command: list[str | Path] = [
            component("kube-apiserver"),
            f"--etcd-servers=http://{LOOPBACK}:{self.slot.ports[ETCD]}",
            f"--bind-address={self.address}",
            f"--secure-port={self.slot.ports[API_SERVER]}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.certificate}",
            f"--token-auth-file={tokens}",
            f"--kubelet-client-certificate={to_kubelets.certificate}",
            f"--kubelet-client-key={to_kubelets.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={self._signing_key.certificate}",
            f"--service-account-signing-key-file={self._signing_key.key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={self.slot.services}",
            "--authorization-mode=RBAC,Node",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
        ]
        if self.address == LOOPBACK:
            # The address of Service `kubernetes` must be one that pods can reach; on loopback there are no such pods.
            command += ["--endpoint-reconciler-type=none"]
        if shape.shows_certificate:
            command += [f"--admission-control-config-file={self._webhook_credentials()}"]
        if shape.feature_gates:
            command += [f"--feature-gates={shape.feature_gates}"]
        if not shape.service_accounts:
            command += ["--disable-admission-plugins=ServiceAccount"]
        self.process = self.start("kube-apiserver", command)
        self.process.wait_until("ready", lambda: _is_well(f"{self.url}/readyz"))

    def _webhook_credentials(self) -> Path:
        pair = self.authority.client("kube-apiserver-webhook-client")
        user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        kubeconfig, configuration = self.run.data / "webhooks.kubeconfig", self.run.data / "admission.yaml"
        kubeconfig.write_text(
            yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]})
        )
        version = "apiserver.config.k8s.io/v1"
        webhooks = {"apiVersion": version, "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": str(kubeconfig)}
        plugins = [{"name": "MutatingAdmissionWebhook", "configuration": webhooks}]
        configuration.write_text(
            yaml.safe_dump({"apiVersion": version, "kind": "AdmissionConfiguration", "plugins": plugins})
        )
        return configuration

    @cached_property
    def _trust(self) -> SSLContext:
        return create_default_context(cafile=str(self.authority.certificate))


@contextmanager
def api_server(run: Run, shape: Shape | None = None) -> Iterator[ApiServer]:
    """A fresh, empty API server."""
    with ExitStack() as until:
        yield ApiServer(run, shape or Shape(), until)


def _is_well(url: str) -> bool:
    """For health checks only: the components' own certificates are self-signed."""
    trust = create_default_context()
    trust.check_hostname, trust.verify_mode = False, CERT_NONE
    try:
        with urllib.request.urlopen(url, context=trust, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False
