"""TLS to the API server, from PEM text."""

import ssl
import tempfile
from pathlib import Path

from carrel.kubernetes.config import Trust
from carrel.kubernetes.credentials import Credentials
from carrel.parsing import Malformed


def tls_context(trust: Trust, credentials: Credentials) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if trust.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif trust.authorities:
        # Only these: the machine's own authorities must not be able to vouch for this server.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=trust.authorities)
        except (ssl.SSLError, ValueError) as error:
            raise Malformed("API server access", "certificate-authority", trust.authorities, "PEM") from error
    if credentials.certificate:
        _load_pair(context, credentials)
    return context


def _load_pair(context: ssl.SSLContext, credentials: Credentials) -> None:
    # The ssl module reads certificates from files only. Nobody else can read the folder, and it is deleted at once.
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder) / "pair.pem"
        pair.touch(mode=0o600)
        pair.write_text(f"{credentials.certificate}\n{credentials.key}\n")
        try:
            context.load_cert_chain(pair)
        except (ssl.SSLError, ValueError) as error:
            raise Malformed(
                "API server access", "client certificate", "(not shown)", f"a PEM pair ({error})"
            ) from error
