"""The certificate of a server, and the authority of its callers, from files that others renew while it runs."""

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from carrel.http.serving import TlsContext

T = TypeVar("T")

LOOK_EVERY_S = 2.0


class WatchedFiles(Generic[T]):
    """What `read` makes of some files. It is read again when one of them has changed; while that fails, what was read
    before stays."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], T], failed: Callable[[Exception], None]) -> None:
        """Raises what `read` raises."""
        self._paths = tuple(paths)
        self._read = read
        self._failed = failed
        self._looked, self._seen = time.monotonic(), self._state()
        self._value = read()

    def __call__(self) -> T:
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            self._read_again()
        return self._value

    def _read_again(self) -> None:
        found = self._state()
        if found == self._seen:
            return
        try:
            self._value = self._read()
            self._seen = found  # otherwise it is tried again: a certificate and its key change one after the other
        except (OSError, ValueError) as error:
            self._failed(error)

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stat(path) for path in self._paths)


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


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
