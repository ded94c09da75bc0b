"""Finds the API server and the credentials: from kubeconfig files, or from the ServiceAccount of the pod we run in.

Reads what kubectl reads, in its order: the files of $KUBECONFIG, else (inside a pod) the ServiceAccount, else
~/.kube/config. Of several files the first that names an entry wins. A wrong entry raises `Malformed` with file, field,
value and what would be right. What Carrel does not support (a proxy, impersonation, a password) is refused, not
ignored: to act as another account without notice is worse than not to start.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yarl import URL

from carrel.kubernetes.credentials import (
    CredentialLocations,
    CredentialSource,
    ExecPlugin,
    PluginCredentials,
    StoredCredentials,
)
from carrel.parsing import Malformed

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_REFUSED_IN_USER = {
    "auth-provider": "no auth-provider (Kubernetes removed it); use an exec plugin",
    "username": "no password login (Kubernetes removed it); use a token, a client certificate or an exec plugin",
    "as": "no impersonation; use the credentials of the account itself",
}


@dataclass(frozen=True, slots=True)
class Trust:
    """How the server's certificate is checked."""

    authorities: str = ""
    """PEM; empty: the machine's own authorities."""
    server_name: str = ""
    """The name that its certificate must have, if it is not the host of the address."""
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """Everything that a transport needs to know."""

    server: str
    credential_source: CredentialSource = field(default_factory=lambda: StoredCredentials(CredentialLocations()))
    trust: Trust = Trust()
    namespace: str = "default"


def access_from(environ: Mapping[str, str], context: str = "", service_account: Path = SERVICE_ACCOUNT) -> Access:
    """The only place that reads the environment; `context` names one of the kubeconfig's, else its current one."""
    if files := [Path(name) for name in environ.get("KUBECONFIG", "").split(os.pathsep) if name]:
        return _KubeConfig.read(files, environ).access(context)
    if environ.get("KUBERNETES_SERVICE_HOST") and not context:
        return _in_cluster(environ, service_account)
    home = Path(environ.get("HOME", "")) / ".kube" / "config"
    return _KubeConfig.read([home], environ).access(context)


def access_to(kubeconfig: Path, environ: Mapping[str, str], context: str = "") -> Access:
    """One kubeconfig file, as if $KUBECONFIG named it."""
    return access_from({**environ, "KUBECONFIG": str(kubeconfig)}, context)


def _in_cluster(environ: Mapping[str, str], folder: Path) -> Access:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not port.isdecimal():
        raise Malformed("environment", "KUBERNETES_SERVICE_PORT", port, "a number")
    authorities = _file_text(f"ServiceAccount {folder}", "ca.crt", folder / "ca.crt")
    namespace = _file_text(f"ServiceAccount {folder}", "namespace", folder / "namespace")
    server = URL.build(scheme="https", host=host, port=int(port))
    credential_source = StoredCredentials(CredentialLocations(token=folder / "token"))
    return Access(str(server), credential_source, Trust(authorities), namespace.strip())


@dataclass(frozen=True, slots=True)
class _Entry:
    """One named entry, with the file it came from: relative paths in it are relative to that file."""

    file: Path
    where: str
    values: Mapping[str, Any]

    def __bool__(self) -> bool:
        return bool(self.values)

    def malformed(self, field: str, value: object, expected: str) -> Malformed:
        return Malformed(f"kubeconfig {self.file}", f"{self.where}.{field}", value, expected)

    def text(self, field: str, *, required: bool = False) -> str:
        value = self.values.get(field)
        if value is None and not required:
            return ""
        if not isinstance(value, str) or (required and not value):
            raise self.malformed(field, value, "text")
        return value

    def flag(self, field: str) -> bool:
        value = self.values.get(field, False)
        if not isinstance(value, bool):
            raise self.malformed(field, value, "true or false")
        return value

    def sequence(self, field: str) -> list[Any]:
        value = self.values.get(field) or []
        if not isinstance(value, list):
            raise self.malformed(field, value, "a list")
        return value

    def inner(self, field: str) -> "_Entry":
        value = self.values.get(field) or {}
        if not isinstance(value, dict):
            raise self.malformed(field, value, "a map")
        return _Entry(self.file, f"{self.where}.{field}", value)

    def path(self, field: str) -> Path | None:
        value = self.text(field)
        return self.file.parent / value if value else None

    def pem_source(self, field: str) -> str | Path:
        """The text in `<field>-data` (base64), else the file that `<field>` names; empty if there is neither."""
        data = self.text(f"{field}-data")
        try:
            text = base64.b64decode(data, validate=True).decode("ascii")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise self.malformed(f"{field}-data", "(not shown)", "PEM text in base64") from error
        path = self.path(field)
        if not text and path and not path.is_file():
            raise self.malformed(field, str(path), "a file that exists")
        return text or path or ""

    def pem(self, field: str) -> str:
        source = self.pem_source(field)
        return (
            _file_text(f"kubeconfig {self.file}", f"{self.where}.{field}", source)
            if isinstance(source, Path)
            else source
        )


@dataclass(frozen=True, slots=True)
class _KubeConfig:
    files: tuple[_Entry, ...]
    environ: Mapping[str, str]

    @classmethod
    def read(cls, files: list[Path], environ: Mapping[str, str]) -> "_KubeConfig":
        # Like kubectl: a file of the list may be missing, but not all of them.
        present = tuple(_read_yaml(file) for file in files if file.is_file())
        if not present:
            names = os.pathsep.join(str(file) for file in files)
            raise Malformed("kubeconfig", "file", names, "a file that exists; set KUBECONFIG to its path")
        return cls(present, environ)

    def access(self, context: str) -> Access:
        context = context or next(filter(None, (file.text("current-context") for file in self.files)), "")
        if not context:
            raise self.files[0].malformed("current-context", "", "the name of a context")
        chosen = self._named("contexts", "context", context)
        cluster = self._named("clusters", "cluster", chosen.text("cluster", required=True))
        user_name = chosen.text("user")
        user = self._named("users", "user", user_name) if user_name else _Entry(chosen.file, "user", {})
        trust = Trust(
            cluster.pem("certificate-authority"),
            cluster.text("tls-server-name"),
            cluster.flag("insecure-skip-tls-verify"),
        )
        if trust.authorities and trust.insecure:
            raise cluster.malformed("insecure-skip-tls-verify", True, "false where a certificate-authority is given")
        if proxy := cluster.text("proxy-url"):
            raise cluster.malformed("proxy-url", proxy, "none: Carrel connects to the API server directly")
        return Access(
            _server(cluster), self._credential_source(user, cluster), trust, chosen.text("namespace") or "default"
        )

    def _named(self, plural: str, singular: str, name: str) -> _Entry:
        known = []
        for file in self.files:
            for index, entry in enumerate(file.sequence(plural)):
                where = f"{plural}[{index}]"
                if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                    raise file.malformed(where, entry, f"a map with a name and a {singular}")
                known.append(entry["name"])
                if entry["name"] == name:
                    return _Entry(file.file, f"{file.where}.{where}", entry).inner(singular)
        raise self.files[0].malformed(plural, known, f"an entry named {name!r}")

    def _credential_source(self, user: _Entry, cluster: _Entry) -> CredentialSource:
        for field_, instead in _REFUSED_IN_USER.items():
            if field_ in user.values:
                raise user.malformed(field_, "(not shown)", instead)
        if user.inner("exec"):
            return PluginCredentials(self._plugin(user.inner("exec"), cluster))
        certificate, key = (user.pem_source(name) for name in _PAIR)
        if bool(certificate) != bool(key):
            raise user.malformed(_PAIR[bool(certificate)], "", f"given, because there is a {_PAIR[not certificate]}")
        return StoredCredentials(CredentialLocations(user.path("tokenFile") or user.text("token"), certificate, key))

    def _plugin(self, entry: _Entry, cluster: _Entry) -> ExecPlugin:
        version = entry.text("apiVersion", required=True)
        if version not in _PLUGIN_VERSIONS:
            raise entry.malformed("apiVersion", version, " or ".join(_PLUGIN_VERSIONS))
        if (mode := entry.text("interactiveMode")) == "Always":
            raise entry.malformed("interactiveMode", mode, "Never or IfAvailable: Carrel has no terminal")
        arguments = entry.sequence("args")
        if not all(isinstance(argument, str) for argument in arguments):
            raise entry.malformed("args", arguments, "a list of texts")
        environment = dict(self.environ)
        for index, variable in enumerate(entry.sequence("env")):
            if not isinstance(variable, dict) or not {"name", "value"} <= variable.keys():
                raise entry.malformed(f"env[{index}]", variable, "a map with a name and a value")
            environment[str(variable["name"])] = str(variable["value"])
        command = entry.text("command", required=True)
        if os.sep in command:
            command = str(entry.file.parent / command)
        cluster_info = None
        if entry.flag("provideClusterInfo"):
            authorities = base64.b64encode(cluster.pem("certificate-authority").encode()).decode()
            cluster_info = {"server": _server(cluster), "certificate-authority-data": authorities}
        return ExecPlugin(version, command, tuple(arguments), environment, entry.text("installHint"), cluster_info)


_PAIR = ("client-certificate", "client-key")


def _server(cluster: _Entry) -> str:
    server = cluster.text("server", required=True)
    try:
        url = URL(server)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise cluster.malformed("server", server, "an address such as https://host:6443")
    if url.user is not None or url.password is not None:
        raise cluster.malformed("server", "an address with a user", "one without, such as https://host:6443")
    return server.rstrip("/")


def _read_yaml(file: Path) -> _Entry:
    try:
        document = yaml.safe_load(file.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Malformed(f"kubeconfig {file}", "content", " ".join(str(error).split()), "YAML") from error
    if not isinstance(document, dict):
        raise Malformed(f"kubeconfig {file}", "content", type(document).__name__, "a map with clusters and contexts")
    return _Entry(file, "$", document)


def _file_text(subject: str, field: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Malformed(subject, field, str(path), f"a readable file ({error})") from error
