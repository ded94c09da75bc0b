"""Kubeconfigs and ServiceAccounts: found, merged and read; the error for a wrong one says what would be right."""

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from carrel.kubernetes.config import Access, access_from, access_to
from carrel.kubernetes.credentials import Credentials
from carrel.parsing import Malformed

PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
DATA = base64.b64encode(PEM.encode()).decode()


def kubeconfig(user: Any = None, cluster: Any = None, context: Any = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "c", "cluster": {"server": "https://k8s.example:6443"} if cluster is None else cluster}],
        "users": [{"name": "u", "user": {"token": "t0"} if user is None else user}],
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"} if context is None else context}],
    }


def write(folder: Path, document: Any, name: str = "config") -> Path:
    file = folder / name
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return file


def access(folder: Path, document: Any, context: str = "") -> Access:
    return access_to(write(folder, document), {}, context)


async def credentials(found: Access) -> Credentials:
    return await found.credential_source.credentials()


async def test_a_token_in_the_text(tmp_path: Path) -> None:
    found = access(tmp_path, kubeconfig())
    assert (found.server, found.namespace) == ("https://k8s.example:6443", "default")
    assert await credentials(found) == Credentials(token="t0")


async def test_a_kubeconfig_may_have_no_user(tmp_path: Path) -> None:
    assert await credentials(access(tmp_path, kubeconfig(context={"cluster": "c"}))) == Credentials()


async def test_certificates_in_the_text(tmp_path: Path) -> None:
    user = {"client-certificate-data": DATA, "client-key-data": DATA}
    cluster = {"server": "https://k8s.example", "certificate-authority-data": DATA, "tls-server-name": "inner"}
    found = access(tmp_path, kubeconfig(user, cluster))
    assert await credentials(found) == Credentials(certificate=PEM, key=PEM)
    assert (found.trust.authorities, found.trust.server_name, found.trust.insecure) == (PEM, "inner", False)


async def test_files_are_found_beside_the_kubeconfig(tmp_path: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        write(tmp_path, PEM, name)
    write(tmp_path, "t1\n", "token")
    user = {"client-certificate": "cert.pem", "client-key": str(tmp_path / "key.pem"), "tokenFile": "token"}
    cluster = {"server": "https://k8s.example", "certificate-authority": "ca.pem"}
    found = access(tmp_path, kubeconfig(user, cluster))
    assert await credentials(found) == Credentials("t1", PEM.strip(), PEM.strip())
    assert found.trust.authorities == PEM


async def test_a_context_can_be_named(tmp_path: Path) -> None:
    document = kubeconfig()
    document["contexts"].append({"name": "other", "context": {"cluster": "c", "user": "u", "namespace": "lab-2"}})
    assert access(tmp_path, document, "other").namespace == "lab-2"


class TestWhichKubeconfigIsUsed:
    async def test_the_first_file_that_names_an_entry_wins(self, tmp_path: Path) -> None:
        first = {"users": [{"name": "u", "user": {"token": "first"}}]}
        files = [
            write(tmp_path, first, "first"),
            tmp_path / "missing",
            write(tmp_path, kubeconfig(), "second"),
        ]
        found = access_from({"KUBECONFIG": os.pathsep.join(map(str, files))})
        assert await credentials(found) == Credentials(token="first")

    def test_the_home_folder_comes_last(self, tmp_path: Path) -> None:
        (tmp_path / ".kube").mkdir()
        write(tmp_path / ".kube", kubeconfig())
        assert access_from({"HOME": str(tmp_path)}).server == "https://k8s.example:6443"

    def test_a_missing_kubeconfig_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(Malformed, match="set KUBECONFIG"):
            access_from({"HOME": str(tmp_path)})

    @pytest.mark.parametrize(
        ("host", "server"), [("10.96.0.1", "https://10.96.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")]
    )
    async def test_inside_a_pod_it_is_the_service_account(self, tmp_path: Path, host: str, server: str) -> None:
        for name, content in (("ca.crt", PEM), ("namespace", "carrel\n"), ("token", "t1")):
            write(tmp_path, content, name)
        environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}
        found = access_from(environ, service_account=tmp_path)
        assert (found.server, found.namespace, found.trust.authorities) == (server, "carrel", PEM)
        assert await credentials(found) == Credentials(token="t1")

    def test_a_service_account_without_files_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(Malformed, match=r"ca\.crt"):
            access_from({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, service_account=tmp_path)

    def test_an_invalid_port_is_reported(self, tmp_path: Path) -> None:
        for name in ("ca.crt", "namespace"):
            write(tmp_path, PEM, name)
        environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "tcp://x"}
        with pytest.raises(Malformed, match="KUBERNETES_SERVICE_PORT"):
            access_from(environ, service_account=tmp_path)


PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1", "command": "login", "interactiveMode": "Never"}


@pytest.mark.parametrize(
    ("document", "field", "expected"),
    [
        pytest.param("]", "content", "YAML", id="no YAML"),
        pytest.param("- a\n", "content", "a map", id="a list"),
        pytest.param({}, "$.current-context", "the name of a context", id="empty"),
        pytest.param({"current-context": 7}, "$.current-context", "text", id="a context that is a number"),
        pytest.param(
            {**kubeconfig(), "current-context": "x"}, "$.contexts", "an entry named 'x'", id="unknown context"
        ),
        pytest.param({**kubeconfig(), "contexts": "lab"}, "$.contexts", "a list", id="contexts are no list"),
        pytest.param({**kubeconfig(), "contexts": ["lab"]}, "$.contexts[0]", "a map with a name", id="entry is no map"),
        pytest.param(kubeconfig(context={"user": "u"}), "$.contexts[0].context.cluster", "text", id="no cluster"),
        pytest.param(
            kubeconfig(context={"cluster": "x"}), "$.clusters", "an entry named 'x'", id="a cluster that is not there"
        ),
        pytest.param(
            kubeconfig(context={"cluster": "c", "user": "x"}), "$.users", "an entry named 'x'", id="no such user"
        ),
        pytest.param(kubeconfig(cluster={}), "$.clusters[0].cluster.server", "text", id="no server"),
        pytest.param(
            kubeconfig(cluster={"server": "k8s.example:6443"}),
            "$.clusters[0].cluster.server",
            "an address such as https://host:6443",
            id="a server without a scheme",
        ),
        pytest.param(
            kubeconfig(cluster={"server": "https://h", "certificate-authority-data": "%%%"}),
            "$.clusters[0].cluster.certificate-authority-data",
            "PEM text in base64",
            id="no base64",
        ),
        pytest.param(
            kubeconfig(cluster={"server": "https://h", "certificate-authority": "/does/not/exist"}),
            "$.clusters[0].cluster.certificate-authority",
            "a file that exists",
            id="a file that is not there",
        ),
        pytest.param(
            kubeconfig(cluster={"server": "https://h", "insecure-skip-tls-verify": "yes"}),
            "$.clusters[0].cluster.insecure-skip-tls-verify",
            "true or false",
            id="yes is not true",
        ),
        pytest.param(
            kubeconfig(
                cluster={"server": "https://h", "insecure-skip-tls-verify": True, "certificate-authority-data": DATA}
            ),
            "$.clusters[0].cluster.insecure-skip-tls-verify",
            "false where",
            id="trust nobody and everybody",
        ),
        pytest.param(
            kubeconfig(cluster={"server": "https://h", "proxy-url": "http://p"}),
            "$.clusters[0].cluster.proxy-url",
            "none",
            id="a proxy",
        ),
        pytest.param(kubeconfig({"token": 7}), "$.users[0].user.token", "text", id="a token that is a number"),
        pytest.param(kubeconfig("alice"), "$.users[0].user", "an object", id="a user who is only a name"),
        pytest.param(
            kubeconfig({"client-certificate-data": DATA}),
            "$.users[0].user.client-key",
            "given",
            id="only a certificate",
        ),
        pytest.param(
            kubeconfig({"client-key-data": DATA}), "$.users[0].user.client-certificate", "given", id="only a key"
        ),
        pytest.param(kubeconfig({"username": "a"}), "$.users[0].user.username", "no password", id="a password"),
        pytest.param(
            kubeconfig({"as": "a", "token": "t"}), "$.users[0].user.as", "no impersonation", id="impersonation"
        ),
        pytest.param(
            kubeconfig({"auth-provider": {"name": "gcp"}}), "$.users[0].user.auth-provider", "exec", id="auth-provider"
        ),
        pytest.param(
            kubeconfig({"exec": {**PLUGIN, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}),
            "$.users[0].user.exec.apiVersion",
            "client.authentication.k8s.io/v1 or",
            id="an old plugin",
        ),
        pytest.param(
            kubeconfig({"exec": {**PLUGIN, "command": ""}}), "$.users[0].user.exec.command", "text", id="no command"
        ),
        pytest.param(
            kubeconfig({"exec": {**PLUGIN, "interactiveMode": "Always"}}),
            "$.users[0].user.exec.interactiveMode",
            "has no terminal",
            id="a plugin that asks",
        ),
        pytest.param(
            kubeconfig({"exec": {**PLUGIN, "args": [7]}}), "$.users[0].user.exec.args", "texts", id="args are texts"
        ),
        pytest.param(
            kubeconfig({"exec": {**PLUGIN, "env": [{"name": "A"}]}}),
            "$.users[0].user.exec.env[0]",
            "a name and a value",
            id="a variable without a value",
        ),
    ],
)
def test_a_wrong_kubeconfig_names_file_field_and_what_is_right(
    tmp_path: Path, document: Any, field: str, expected: str
) -> None:
    with pytest.raises(Malformed) as wrong:
        access(tmp_path, document)
    assert wrong.value.subject == f"kubeconfig {tmp_path / 'config'}"
    assert wrong.value.field == field
    assert expected in wrong.value.expected


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    with pytest.raises(Malformed) as wrong:
        access(tmp_path, kubeconfig({"username": "alice", "password": "open sesame"}))
    assert "sesame" not in str(wrong.value)
    assert "t0" not in repr(access(tmp_path, kubeconfig()))
