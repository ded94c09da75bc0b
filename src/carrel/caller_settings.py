"""Settings of a component that must know who calls it: the webhook and the extender."""

import re
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.command_errors import USAGE, command_failed
from carrel.option_fields import secret, setting
from carrel.parsing.secret_settings import why_weak

if TYPE_CHECKING:
    from carrel.http.callers import CallerRules

_IN_A_PATH = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
"""The API server takes no other characters in the path of a webhook's Service."""


@dataclass(frozen=True)
class PathSecretSettings:
    path_secret: str = secret(
        "Secret that callers put into the path, or send as the password of the address; after a comma, an"
        " older one that is still accepted."
    )
    """For callers that cannot show a certificate."""

    def path_secrets(self) -> Sequence[bytes]:
        """Return the secrets that are accepted; the webhook tells the API server the first. Empty: no secret is needed.

        Raises `ValueError` with what is wrong.
        """
        secrets = re.split(r"[,\s]+", self.path_secret.strip()) if self.path_secret else []
        for given in secrets:
            if weak := why_weak("CARREL_PATH_SECRET", given):
                raise ValueError(weak)
            if not _IN_A_PATH.fullmatch(given):
                raise ValueError(
                    "CARREL_PATH_SECRET may have small letters, digits and - between them only: it becomes a part of a"
                    " path"
                )
        return tuple(given.encode() for given in secrets)


@dataclass(frozen=True)
class CallerSettings(PathSecretSettings):
    client_ca: Path | None = setting(
        None, "PEM file of the authority that signs the certificates of callers, read again when it changes."
    )
    """An authority of its own: whoever has a certificate that it signed may call."""

    def caller_rules(self, command: str, bind_address: str, *, has_tls: bool) -> "CallerRules":
        """The command ends with everything that is wrong."""
        from carrel.http.callers import CallerRules

        problems = list(self._wrong(command, bind_address, has_tls))
        try:
            rules = CallerRules(self.path_secrets(), self.client_ca is not None)
        except ValueError as error:
            problems.append(str(error))
        if problems:
            why = "\n  ".join(problems)
            raise command_failed("The settings cannot be used", why, f"carrel {command} --help", USAGE)
        return rules

    def _wrong(self, command: str, bind_address: str, has_tls: bool) -> Iterator[str]:
        from carrel.configuration.contradictions import is_loopback

        knows_callers = self.path_secret or self.client_ca
        if not knows_callers and not is_loopback(bind_address):
            yield (
                f"with --bind-address {bind_address} anybody who reaches the port could call the {command}:"
                " set CARREL_PATH_SECRET or write --client-ca, or listen on 127.0.0.1"
            )
        if self.client_ca is not None and not has_tls:
            yield "--client-ca needs a server certificate: write --tls-folder, a folder with tls.crt and tls.key"
        if self.client_ca is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self.client_ca)
            except OSError as error:
                yield f"--client-ca {self.client_ca} cannot be used: {error}"
