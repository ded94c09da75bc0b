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
from dataclasses import dataclass
from pathlib import Path

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
from carrel.parsing.fields import Field

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


ANONYMOUS = StoredCredentials(CredentialLocations())


@dataclass(frozen=True, slots=True)
class Access:
    """Everything that a transport needs to know."""

    server: str
    credential_source: CredentialSource = ANONYMOUS
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
    """One named entry, with the folder of its file: relative paths in it are relative to that."""

    field: Field
    folder: Path

    def path(self, name: str) -> Path | None:
        value = self.field[name].text()
        return self.folder / value if value else None

    def pem_source(self, name: str) -> str | Path:
        """The text in `<name>-data` (base64), else the file that `<name>` names; empty if there is neither."""
        data, path = self.field[f"{name}-data"], self.path(name)
        try:
            text = base64.b64decode(data.text(), validate=True).decode("ascii")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise _hidden(data, "PEM text in base64") from error
        if not text and path and not path.is_file():
            raise self.field[name].malformed("a file that exists")
        return text or path or ""

    def pem(self, name: str) -> str:
        source = self.pem_source(name)
        return _file_text(self.field.subject, self.field[name].path, source) if isinstance(source, Path) else source


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
        context = context or next(filter(None, (file.field["current-context"].text() for file in self.files)), "")
        if not context:
            raise self.files[0].field["current-context"].malformed("the name of a context")
        chosen = self._named("contexts", "context", context).field
        named = self._named("clusters", "cluster", chosen["cluster"].some_text())
        cluster, user = named.field, chosen["user"].text()
        is_insecure = cluster["insecure-skip-tls-verify"]
        trust = Trust(named.pem("certificate-authority"), cluster["tls-server-name"].text(), is_insecure.flag())
        if trust.authorities and trust.insecure:
            raise is_insecure.malformed("false where a certificate-authority is given")
        if cluster["proxy-url"].text():
            raise cluster["proxy-url"].malformed("none: Carrel connects to the API server directly")
        credentials = self._credential_source(self._named("users", "user", user), named) if user else ANONYMOUS
        return Access(_server(cluster), credentials, trust, chosen["namespace"].text() or "default")

    def _named(self, plural: str, singular: str, name: str) -> _Entry:
        known = []
        for file in self.files:
            for entry in file.field[plural].items():
                if not isinstance(entry.value, dict) or not isinstance(entry.value.get("name"), str):
                    raise entry.malformed(f"a map with a name and a {singular}")
                known.append(entry.value["name"])
                if entry.value["name"] == name:
                    entry[singular].object()
                    return _Entry(entry[singular], file.folder)
        first = self.files[0].field
        raise Malformed(first.subject, first[plural].path, known, f"an entry named {name!r}")

    def _credential_source(self, user: _Entry, cluster: _Entry) -> CredentialSource:
        for name, instead in _REFUSED_IN_USER.items():
            if name in user.field.object():
                raise _hidden(user.field[name], instead)
        if user.field["exec"].object():
            return PluginCredentials(self._plugin(_Entry(user.field["exec"], user.folder), cluster))
        certificate, key = (user.pem_source(name) for name in _PAIR)
        if bool(certificate) != bool(key):
            missing, there = _PAIR[bool(certificate)], _PAIR[not certificate]
            raise user.field[missing].malformed(f"given, because there is a {there}")
        token = user.path("tokenFile") or user.field["token"].text()
        return StoredCredentials(CredentialLocations(token, certificate, key))

    def _plugin(self, entry: _Entry, cluster: _Entry) -> ExecPlugin:
        field = entry.field
        version, command = field["apiVersion"].some_text(), field["command"].some_text()
        if version not in _PLUGIN_VERSIONS:
            raise field["apiVersion"].malformed(" or ".join(_PLUGIN_VERSIONS))
        if field["interactiveMode"].text() == "Always":
            raise field["interactiveMode"].malformed("Never or IfAvailable: Carrel has no terminal")
        arguments = [argument.value for argument in field["args"].items()]
        if not all(isinstance(argument, str) for argument in arguments):
            raise field["args"].malformed("a list of texts")
        environment = dict(self.environ)
        for variable in field["env"].items():
            if not isinstance(variable.value, dict) or not {"name", "value"} <= variable.value.keys():
                raise variable.malformed("a map with a name and a value")
            environment[str(variable.value["name"])] = str(variable.value["value"])
        if os.sep in command:
            command = str(entry.folder / command)
        cluster_info = None
        if field["provideClusterInfo"].flag():
            authorities = base64.b64encode(cluster.pem("certificate-authority").encode()).decode()
            cluster_info = {"server": _server(cluster.field), "certificate-authority-data": authorities}
        hint = field["installHint"].text()
        return ExecPlugin(version, command, tuple(arguments), environment, hint, cluster_info)


_PAIR = ("client-certificate", "client-key")


def _hidden(field: Field, expected: str) -> Malformed:
    """The error about a value that may be secret."""
    return Malformed(field.subject, field.path, "(not shown)", expected)


def _server(cluster: Field) -> str:
    server = cluster["server"].some_text()
    try:
        url = URL(server)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise cluster["server"].malformed("an address such as https://host:6443")
    if url.user is not None or url.password is not None:
        where = cluster["server"].path
        raise Malformed(cluster.subject, where, "an address with a user", "one without, such as https://host:6443")
    return server.rstrip("/")


def _read_yaml(file: Path) -> _Entry:
    where = f"kubeconfig {file}"
    try:
        document = yaml.safe_load(file.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Malformed(where, "content", " ".join(str(error).split()), "YAML") from error
    if not isinstance(document, dict):
        raise Malformed(where, "content", type(document).__name__, "a map with clusters and contexts")
    return _Entry(Field(document, where, "$"), file.parent)


def _file_text(subject: str, field: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Malformed(subject, field, str(path), f"a readable file ({error})") from error
