"""The certificate that the webhook's server shows, and the authority of its callers. Both may change while it runs."""

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

from carrel.admission.certificates import CertificatePair, UnreadableCertificate, validity
from carrel.http.tls_files import tls_context

log = logging.getLogger(__name__)


class ServedCertificate:
    """New connections get the current certificate. Open connections keep theirs."""

    def __init__(self, client_authority: Callable[[], str] = str) -> None:
        """`client_authority`: who signs the certificates of callers, as PEM; empty: they need none."""
        self.pair: CertificatePair | None = None
        self._client_authority = client_authority
        self._context: ssl.SSLContext | None = None
        self._trusted = ""
        self._is_loaded = asyncio.Event()

    async def wait_loaded(self) -> None:
        """Until there is a certificate."""
        await self._is_loaded.wait()

    def load(self, pair: CertificatePair) -> bool:
        """Whether it differs from the one before. Raises `UnreadableCertificate`, and keeps the one before."""
        if pair == self.pair:
            return False
        self._renew(pair, self._client_authority())
        self._is_loaded.set()
        return True

    def context(self) -> ssl.SSLContext:
        """For a new connection. There must be a certificate."""
        assert self.pair is not None and self._context is not None
        if (trusted := self._client_authority()) != self._trusted:
            try:
                self._renew(self.pair, trusted)
            except UnreadableCertificate as error:
                log.warning("client_ca_unreadable why=%r", str(error))
                self._trusted = trusted  # until the file changes again
        return self._context

    def _renew(self, pair: CertificatePair, client_authority: str) -> None:
        with tempfile.TemporaryDirectory(prefix="carrel-tls-") as folder:  # which nobody else may enter
            certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
            certificate.write_bytes(pair.certificate)
            key.write_bytes(pair.key)
            try:
                self._context = tls_context(certificate, key, client_authority)
            except OSError as error:
                raise UnreadableCertificate(f"no usable certificate with its key: {error}") from None
        self.pair, self._trusted = pair, client_authority

    @property
    def expires_at(self) -> float:
        """Seconds since 1970; 0 while there is no certificate."""
        return validity(self.pair.certificate).ends.timestamp() if self.pair else 0.0
