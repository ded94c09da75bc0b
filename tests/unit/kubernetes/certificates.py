"""A certificate authority for one test."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    certificate: str
    key: str


class Authority:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test authority")
        certificate = (
            self._about(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = _pem(certificate)

    def server(self, name: str = "localhost", *, with_loopback: bool = True) -> Pair:
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        if with_loopback:
            names.append(x509.IPAddress(IPv4Address("127.0.0.1")))
        return self._issue(name, x509.SubjectAlternativeName(names))

    def person(self, name: str) -> Pair:
        return self._issue(name, x509.SubjectAlternativeName([x509.DNSName("person.example")]))

    def _issue(self, name: str, alternative: x509.SubjectAlternativeName) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._about(_name(name), key).add_extension(alternative, critical=False)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pair(_pem(certificate.sign(self._key, hashes.SHA256())), private.decode())

    def _about(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(hours=1))
        )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
