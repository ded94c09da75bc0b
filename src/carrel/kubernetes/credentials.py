"""The credentials for the API server. They are read again for every call, because tokens and certificates are replaced.

If they cannot be read, `Unavailable` is raised: nothing was sent, and a later call may succeed.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from carrel.kubernetes.cluster import Unavailable
from carrel.parsing import Malformed

Stamps = tuple[tuple[int, int, int], ...]

_PLUGIN_LIMIT_S = 60.0
"""An exec plugin calls an identity provider over the network; one that takes longer hangs."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A bearer token, or a client certificate with its key (PEM), or both, or nothing."""

    token: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)


class CredentialSource(Protocol):
    async def credentials(self) -> Credentials: ...

    async def credentials_after(self, refused: Credentials) -> Credentials | None:
        """Other credentials than those that the server answered with 401. None: there are none, so do not retry."""
        ...


@dataclass(frozen=True, slots=True)
class CredentialLocations:
    """Where each part of the credentials is: the text itself, or a file that contains it; empty: no such part."""

    token: str | Path = field(default="", repr=False)
    certificate: str | Path = field(default="", repr=False)
    key: str | Path = field(default="", repr=False)


class StoredCredentials:
    """In the kubeconfig itself, or in files that others replace while we run.

    The kubelet rotates a ServiceAccount's token every hour; so files are checked on every call, and read again when one
    was replaced.
    """

    def __init__(self, sources: CredentialLocations) -> None:
        self._sources = (sources.token, sources.certificate, sources.key)
        self._credentials = Credentials()
        self._stamps: Stamps | None = None

    async def credentials(self) -> Credentials:
        try:
            stamps = self._look()
            if stamps != self._stamps:
                self._credentials = Credentials(*map(_content, self._sources))
                self._stamps = stamps
        except OSError as error:
            raise Unavailable(0, "NoCredential", f"cannot read the credentials: {error}") from error
        return self._credentials

    async def credentials_after(self, refused: Credentials) -> Credentials | None:
        # Only if a file was replaced between the call and its answer.
        credentials = await self.credentials()
        return credentials if credentials != refused else None

    def _look(self) -> Stamps:
        return tuple(_stamp(source) for source in self._sources if isinstance(source, Path))


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """The `exec` entry of a kubeconfig user: a program that prints an ExecCredential."""

    api_version: str
    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None
    """The `spec.cluster` that the program gets, if its entry asks for it."""


class _PluginStatus(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _PluginOutput(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _PluginStatus


class PluginCredentials:
    """Runs the program when its last answer has expired or was refused; concurrent callers share one run."""

    def __init__(self, plugin: ExecPlugin, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._plugin = plugin
        self._now = now
        self._credentials: Credentials | None = None
        self._expires: datetime | None = None
        self._running = asyncio.Lock()

    async def credentials(self) -> Credentials:
        async with self._running:
            if self._credentials is None or (self._expires is not None and self._now() >= self._expires):
                status = await self._run()
                self._credentials = Credentials(status.token, status.client_certificate_data, status.client_key_data)
                self._expires = status.expiration_timestamp
            return self._credentials

    async def credentials_after(self, refused: Credentials) -> Credentials | None:
        # Of several calls that were refused together only the first starts the program.
        if self._credentials == refused:
            self._credentials = None
        credentials = await self.credentials()
        return credentials if credentials != refused else None

    async def _run(self) -> _PluginStatus:
        plugin = self._plugin
        spec: dict[str, Any] = {"interactive": False}
        if plugin.cluster is not None:
            spec["cluster"] = plugin.cluster
        info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**plugin.environment, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            )
        except OSError as error:
            raise self._failed(f"cannot be started: {error.strerror}. {plugin.install_hint}".rstrip(". ")) from error
        try:
            output, complaint = await asyncio.wait_for(process.communicate(), _PLUGIN_LIMIT_S)
        except TimeoutError as error:
            raise self._failed(f"did not answer within {_PLUGIN_LIMIT_S:.0f} s") from error
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            raise self._failed(f"ended with {process.returncode}: {complaint.decode(errors='replace').strip()[-300:]}")
        return self._read(output)

    def _read(self, output: bytes) -> _PluginStatus:
        subject = f"exec plugin {self._plugin.command}"
        try:
            answer = msgspec.json.decode(output, type=_PluginOutput)
        except msgspec.MsgspecError as error:
            # Its output contains secrets: it is never shown.
            raise Malformed(subject, "output", "(not shown)", f"an ExecCredential in JSON ({error})") from error
        if (answer.kind, answer.api_version) != ("ExecCredential", self._plugin.api_version):
            found = f"{answer.kind} {answer.api_version}"
            raise Malformed(subject, "output", found, f"ExecCredential {self._plugin.api_version}")
        status = answer.status
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise Malformed(subject, "status", "one of the two", "both clientCertificateData and clientKeyData")
        if not status.token and not status.client_certificate_data:
            raise Malformed(subject, "status", "neither", "a token or a clientCertificateData")
        return status

    def _failed(self, what: str) -> Unavailable:
        return Unavailable(0, "NoCredential", f"exec plugin {self._plugin.command} {what}")


def _stamp(path: Path) -> tuple[int, int, int]:
    # The kubelet switches a symbolic link: another file has another inode.
    seen = path.stat()
    return seen.st_ino, seen.st_mtime_ns, seen.st_size


def _content(source: str | Path) -> str:
    return source.read_text().strip() if isinstance(source, Path) else source
