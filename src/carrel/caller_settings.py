"""Settings of a component that must know who calls it: the webhook and the extender."""

import ipaddress
import logging
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.command_errors import USAGE, command_failed
from carrel.parsing.secret_settings import why_weak

if TYPE_CHECKING:
    from carrel.http.callers import CallerRules

log = logging.getLogger(__name__)

_IN_A_PATH = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
"""The API server takes no other characters in the path of a webhook's Service."""


@dataclass(frozen=True)
class PathSecretSettings:
    path_secret: Annotated[
        str,
        typer.Option(
            help="Secret that callers put into the path, or send as the password of the address; after a comma, an"
            " older one that is still accepted.",
            envvar="CARREL_PATH_SECRET",
            show_default=False,
        ),
    ] = ""
    """For callers that cannot show a certificate. Better in the environment: every user of the machine sees options."""
    path_secret_file: Annotated[
        Path | None,
        typer.Option(
            help="File with that secret, read again when it changes; one per line.", envvar="CARREL_PATH_SECRET_FILE"
        ),
    ] = None
    """A mounted Secret: it can be changed without a restart."""

    def path_secrets(self) -> Callable[[], Sequence[bytes]] | None:
        """Each is accepted, and the webhook tells the API server the first; None: there is none.

        Raises `OSError` or `ValueError` with what is wrong.
        """
        from carrel.http.watched_files import WatchedFiles

        if self.path_secret_file is not None:
            path = self.path_secret_file
            return WatchedFiles(
                [path],
                lambda: _secrets("--path-secret-file", path.read_text()),
                lambda error: log.warning("path_secret_unreadable file=%s why=%r", path, str(error)),
            )
        if not self.path_secret:
            return None
        secrets = _secrets("--path-secret", self.path_secret)
        return lambda: secrets


@dataclass(frozen=True)
class CallerSettings(PathSecretSettings):
    client_ca: Annotated[
        Path | None,
        typer.Option(
            help="PEM file of the authority that signs the certificates of callers, read again when it changes.",
            envvar="CARREL_CLIENT_CA",
        ),
    ] = None
    """An authority of its own: whoever has a certificate that it signed may call."""

    def caller_rules(self, command: str, bind_address: str, *, has_tls: bool) -> "CallerRules":
        """The command ends with everything that is wrong."""
        from carrel.http.callers import CallerRules

        problems = list(self._wrong(command, bind_address, has_tls))
        try:
            rules = CallerRules(self.path_secrets(), self.client_ca is not None)
        except (OSError, ValueError) as error:
            problems.append(str(error))
        if problems:
            why = "\n  ".join(problems)
            raise command_failed("The settings cannot be used", why, f"carrel {command} --help", USAGE)
        return rules

    def _wrong(self, command: str, bind_address: str, has_tls: bool) -> Iterator[str]:
        knows_callers = self.path_secret or self.path_secret_file or self.client_ca
        if not knows_callers and not is_loopback(bind_address):
            yield (
                f"with --bind-address {bind_address} anybody who reaches the port could call the {command}:"
                " write --path-secret (better CARREL_PATH_SECRET) or --client-ca, or listen on 127.0.0.1"
            )
        if self.client_ca is not None and not has_tls:
            yield "--client-ca needs a server certificate: write --tls-folder, a folder with tls.crt and tls.key"
        if self.client_ca is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self.client_ca)
            except OSError as error:
                yield f"--client-ca {self.client_ca} cannot be used: {error}"


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _secrets(option: str, text: str) -> Sequence[bytes]:
    secrets = re.split(r"[,\s]+", text.strip())
    for secret in secrets:
        if weak := why_weak(option, secret):
            raise ValueError(weak)
        if not _IN_A_PATH.fullmatch(secret):
            raise ValueError(
                f"{option} may have small letters, digits and - between them only: it becomes a part of a path"
            )
    return tuple(secret.encode() for secret in secrets)
