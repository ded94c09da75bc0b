"""The certificate that the webhook's server shows. It may change while the server runs."""

import asyncio
import ssl
import tempfile
from pathlib import Path

from carrel.admission.certificates import CertificatePair, UnreadableCertificate, validity


class ServedCertificate:
    """New connections get the current certificate. Open connections keep theirs."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.pair: CertificatePair | None = None
        self._is_loaded = asyncio.Event()

    async def wait_loaded(self) -> None:
        """Until there is a certificate."""
        await self._is_loaded.wait()

    def load(self, pair: CertificatePair) -> bool:
        """Whether it differs from the one before. Raises `UnreadableCertificate`, and keeps the one before."""
        if pair == self.pair:
            return False
        with tempfile.TemporaryDirectory(prefix="carrel-tls-") as folder:  # which nobody else may enter
            certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
            certificate.write_bytes(pair.certificate)
            key.write_bytes(pair.key)
            try:
                # Into a fresh context first: half of a broken pair must not get into the one that is in use.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
                self.context.load_cert_chain(certificate, key)
            except (ssl.SSLError, OSError) as error:
                raise UnreadableCertificate(f"no usable certificate with its key: {error}") from None
        self.pair = pair
        self._is_loaded.set()
        return True

    @property
    def expires_at(self) -> float:
        """Seconds since 1970; 0 while there is no certificate."""
        return validity(self.pair.certificate).ends.timestamp() if self.pair else 0.0
