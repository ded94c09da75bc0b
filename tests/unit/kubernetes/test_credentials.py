"""Credentials that change while we run: rotated files, and a plugin that is a real program."""

import asyncio
import json
import os
import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from carrel.kubernetes.cluster import Unavailable
from carrel.kubernetes.config import access_to
from carrel.kubernetes.credentials import (
    CredentialLocations,
    Credentials,
    ExecPlugin,
    PluginCredentials,
    StoredCredentials,
)
from carrel.parsing import Malformed
from tests.unit.kubernetes.test_config import kubeconfig, write

V1 = "client.authentication.k8s.io/v1"
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class TestFiles:
    async def test_a_rotated_token_is_used_at_once(self, tmp_path: Path) -> None:
        # The kubelet writes a new folder and switches a link to it.
        for number in (1, 2):
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "token").write_text(f"token-{number}")
        (tmp_path / "data").symlink_to("1")
        credential_source = StoredCredentials(CredentialLocations(token=tmp_path / "data" / "token"))
        assert await credential_source.credentials() == Credentials(token="token-1")
        (tmp_path / "new").symlink_to("2")
        (tmp_path / "new").rename(tmp_path / "data")
        assert await credential_source.credentials_after(Credentials(token="token-1")) == Credentials(token="token-2")
        assert await credential_source.credentials() == Credentials(token="token-2")

    async def test_a_token_that_was_not_rotated_is_not_tried_again(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("t")
        credential_source = StoredCredentials(CredentialLocations(token=tmp_path / "token"))
        assert await credential_source.credentials_after(await credential_source.credentials()) is None

    async def test_a_missing_file_is_unavailable_until_it_comes(self, tmp_path: Path) -> None:
        credential_source = StoredCredentials(CredentialLocations(token=tmp_path / "token"))
        with pytest.raises(Unavailable, match="token"):
            await credential_source.credentials()
        (tmp_path / "token").write_text("late")
        assert await credential_source.credentials() == Credentials(token="late")


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a plugin: a program that counts its runs in a file and then does what the test says."""

    def write_program(body: str) -> Path:
        path = tmp_path / "login"
        runs = tmp_path / "runs"
        path.write_text(
            f"#!{sys.executable}\nimport json, os, sys\nopen({str(runs)!r}, 'a').write('x')\n"
            f"run = os.path.getsize({str(runs)!r})\n{body}\n"
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return write_program


def runs(folder: Path) -> int:
    return (folder / "runs").stat().st_size


def printing(status: str) -> str:
    return f"print(json.dumps({{'apiVersion': '{V1}', 'kind': 'ExecCredential', 'status': {status}}}))"


class TestPlugin:
    async def test_its_answer_is_kept_until_it_expires(self, tmp_path: Path, program: Callable[[str], Path]) -> None:
        expires = (NOON + timedelta(hours=1)).isoformat()
        command = program(printing(f"{{'token': f'token-{{run}}', 'expirationTimestamp': '{expires}'}}"))
        now = NOON
        credential_source = PluginCredentials(ExecPlugin(V1, str(command), environment=os.environ), lambda: now)
        proofs = await asyncio.gather(*(credential_source.credentials() for _ in range(5)))
        assert set(proofs) == {Credentials(token="token-1")}
        now = NOON + timedelta(minutes=59)
        assert await credential_source.credentials() == Credentials(token="token-1")
        now = NOON + timedelta(hours=1)
        assert await credential_source.credentials() == Credentials(token="token-2")
        assert runs(tmp_path) == 2

    async def test_a_refused_answer_is_asked_for_anew(self, tmp_path: Path, program: Callable[[str], Path]) -> None:
        command = program(printing("{'token': f'token-{run}'}"))
        credential_source = PluginCredentials(ExecPlugin(V1, str(command), environment=os.environ))
        first = await credential_source.credentials()
        assert first == Credentials(token="token-1")
        after = await asyncio.gather(*(credential_source.credentials_after(first) for _ in range(5)))
        assert set(after) == {Credentials(token="token-2")}
        assert runs(tmp_path) == 2

    async def test_it_gets_arguments_variables_and_the_cluster(
        self, tmp_path: Path, program: Callable[[str], Path]
    ) -> None:
        program(
            "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
            + printing("{'token': json.dumps([sys.argv[1:], os.environ['REGION'], os.environ['GIVEN'], info])}")
        )
        user = {
            "exec": {
                "apiVersion": V1,
                "command": "./login",
                "args": ["--for", "lab"],
                "env": [{"name": "REGION", "value": "north"}],
                "interactiveMode": "IfAvailable",
                "provideClusterInfo": True,
            }
        }
        access = access_to(write(tmp_path, kubeconfig(user)), {**os.environ, "GIVEN": "by us"})
        told = json.loads((await access.credential_source.credentials()).token)
        assert told[:3] == [["--for", "lab"], "north", "by us"]
        assert (told[3]["apiVersion"], told[3]["kind"]) == (V1, "ExecCredential")
        assert told[3]["spec"]["interactive"] is False
        assert told[3]["spec"]["cluster"]["server"] == "https://k8s.example:6443"

    async def test_it_may_answer_with_a_certificate(self, program: Callable[[str], Path]) -> None:
        command = program(printing("{'clientCertificateData': 'CERT', 'clientKeyData': 'KEY'}"))
        credential_source = PluginCredentials(ExecPlugin(V1, str(command), environment=os.environ))
        assert await credential_source.credentials() == Credentials(certificate="CERT", key="KEY")

    async def test_a_program_that_fails_is_unavailable_and_shows_its_complaint(
        self, tmp_path: Path, program: Callable[[str], Path]
    ) -> None:
        command = program("sys.exit('please log in first')")
        credential_source = PluginCredentials(ExecPlugin(V1, str(command), environment=os.environ))
        for count in (1, 2):
            with pytest.raises(Unavailable, match="ended with 1: please log in first"):
                await credential_source.credentials()
            assert runs(tmp_path) == count

    async def test_a_program_that_is_not_installed_says_how_to_get_it(self) -> None:
        plugin = ExecPlugin(
            V1, "no-such-login-program", environment=os.environ, install_hint="Install it with: get login"
        )
        with pytest.raises(Unavailable, match="Install it with: get login"):
            await PluginCredentials(plugin).credentials()

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ("print('hello')", "an ExecCredential in JSON"),
            ("print('{}')", "an ExecCredential in JSON"),
            (printing("{}"), "a token or a clientCertificateData"),
            (printing("{'token': 't', 'clientKeyData': 'secret-key'}"), "both"),
            (printing("{'token': 't', 'expirationTimestamp': 'tomorrow'}"), "an ExecCredential in JSON"),
            (printing("{'token': 't'}").replace("/v1", "/v1beta1"), f"ExecCredential {V1}"),
        ],
        ids=["text", "empty", "no proof", "a key without a certificate", "a wrong date", "another version"],
    )
    async def test_a_wrong_answer_is_malformed_and_not_shown(
        self, program: Callable[[str], Path], body: str, expected: str
    ) -> None:
        credential_source: Any = PluginCredentials(ExecPlugin(V1, str(program(body)), environment=os.environ))
        with pytest.raises(Malformed) as wrong:
            await credential_source.credentials()
        assert expected in wrong.value.expected
        assert "secret-key" not in str(wrong.value)
