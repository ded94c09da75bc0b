"""A self-signed certificate for a server on loopback, new for each start."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    pem: bytes
    """Also the authority that clients have to trust: it is self-signed."""
    key_pem: bytes

    @classmethod
    def make(cls, names: Sequence[str]) -> "Certificate":
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Kubernetes API in memory")])
        # From an hour ago: the clock of a client may be a little behind.
        start = datetime.now(UTC) - timedelta(hours=1)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + timedelta(days=365))
            .add_extension(x509.SubjectAlternativeName([_name(name) for name in dict.fromkeys(names)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(made.public_bytes(serialization.Encoding.PEM), private)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Returns the files of the certificate and of its key."""
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        certificate.write_bytes(self.pem)
        key.touch(mode=0o600)
        key.write_bytes(self.key_pem)
        return certificate, key


def _name(name: str):  # type: ignore[no-untyped-def]  # x509.GeneralName, imported only where it is needed
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
