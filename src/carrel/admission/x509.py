"""The Notary, with `cryptography`: P-256 keys, SHA-256, and no more in a certificate than TLS servers need; and the
certificate that a server shows, which may change while it serves."""

import asyncio
import ipaddress
import re
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from carrel.admission.certificates import Pair, Unreadable, Validity

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_BROKEN = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What `cryptography` says of a certificate or a key that is not what it looks like."""


class X509Notary:
    def authority(self, valid: Validity) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        # The serial is in the name: two authorities in one bundle must not be taken for each other.
        serial = x509.random_serial_number()
        name = _named(f"Carrel's webhook authority {serial:x}"[:64])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        made = (
            _builder(name, name, key, valid, serial)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identity, critical=False)
            .sign(key, hashes.SHA256())
        )
        return _pair(made, key)

    def issue(self, authority: Pair, names: Sequence[str], valid: Validity) -> Pair:
        signer, signer_key = _certificate(authority.certificate), _key(authority.key)
        key = ec.generate_private_key(ec.SECP256R1())
        server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key())
        made = (
            _builder(_named("Carrel's webhook"), signer.subject, key, valid, x509.random_serial_number())
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(server, critical=False)
            .add_extension(signed_by, critical=False)
            .sign(signer_key, hashes.SHA256())
        )
        return _pair(made, key)

    def check(self, pair: Pair) -> Validity:
        if _certificate(pair.certificate).public_key() != _key(pair.key).public_key():
            raise Unreadable("the certificate and the key do not belong together")
        return self.validity(pair.certificate)

    def validity(self, certificate: bytes) -> Validity:
        read = _certificate(certificate)
        return Validity(read.not_valid_before_utc, read.not_valid_after_utc)

    def is_by(self, certificate: bytes, authority: bytes) -> bool:
        try:
            _certificate(certificate).verify_directly_issued_by(_certificate(authority))
        except (*_BROKEN, InvalidSignature):
            return False
        return True

    def names(self, certificate: bytes) -> frozenset[str]:
        try:
            found = _certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return frozenset()
        addresses = found.get_values_for_type(x509.IPAddress)
        return frozenset([*found.get_values_for_type(x509.DNSName), *map(str, addresses)])

    def split(self, bundle: bytes) -> list[bytes]:
        found = []
        for pem in _PEM.findall(bundle):
            try:
                found.append(_certificate(pem).public_bytes(serialization.Encoding.PEM))
            except Unreadable:
                continue
        return found


class Shown:
    """What new connections are shown. Those that are open stay as they are."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.pair: Pair | None = None
        self._something = asyncio.Event()

    async def wait_something(self) -> None:
        """Until there is a certificate to show."""
        await self._something.wait()

    def show(self, pair: Pair) -> bool:
        """Whether it is another than before. Raises `Unreadable`, and goes on with the one before."""
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
                raise Unreadable(f"no usable certificate with its key: {error}") from None
        self.pair = pair
        self._something.set()
        return True

    @property
    def expires_at(self) -> float:
        """Seconds since 1970; 0 while there is none."""
        return X509Notary().validity(self.pair.certificate).ends.timestamp() if self.pair else 0.0


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid: Validity, serial: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(valid.begins)
        .not_valid_after(valid.ends)
    )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return Pair(certificate.public_bytes(pem), key.private_bytes(pem, pkcs8, serialization.NoEncryption()))


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        found = x509.load_pem_x509_certificate(pem)
        # Each part is read only when it is asked for; then it would be too late to find out that it is broken.
        _ = found.public_key(), found.extensions, found.subject, found.issuer
        _ = found.not_valid_before_utc, found.not_valid_after_utc
    except _BROKEN:
        raise Unreadable("there is no certificate") from None
    return found


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except _BROKEN:
        raise Unreadable("there is no private key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Unreadable("the private key is not of the kind that Carrel makes")
    return key
