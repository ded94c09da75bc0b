"""The certificate of a server, and the authority of its callers, from files that others renew."""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from carrel.http.server import TlsContext
from carrel.http.watched_files import WatchedFiles

log = logging.getLogger(__name__)


def tls_context(certificate: Path, key: Path, client_authority: str = "") -> ssl.SSLContext:
    """With an authority, as PEM, callers may show a certificate: probes have none, so who needs one is decided per
    request. Raises `OSError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    if client_authority:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=client_authority)
    return context


def tls_of_folder(folder: Path, client_ca: Path | None) -> TlsContext:
    """Return a context with `tls.crt` and `tls.key`. Raises `OSError` if they cannot be used."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    return WatchedFiles(
        [certificate, key, *([client_ca] if client_ca else [])],
        lambda: tls_context(certificate, key, client_ca.read_text() if client_ca else ""),
        lambda error: log.warning("certificate_unreadable folder=%s why=%r", folder, str(error)),
    )


def authority_of(client_ca: Path) -> Callable[[], str]:
    """The text of the file, as it is now. Raises `OSError`."""
    return WatchedFiles(
        [client_ca],
        client_ca.read_text,
        lambda error: log.warning("client_ca_unreadable file=%s why=%r", client_ca, str(error)),
    )
