"""Makes and reads X.509 certificates: P-256 keys, SHA-256, and no more in a certificate than a TLS server needs.

Nothing is kept here, and no clock is read.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_BROKEN = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What `cryptography` raises for a certificate or a key that is broken."""


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Validity:
    begins: datetime
    ends: datetime


class UnreadableCertificate(Exception):
    """It is no certificate, or the key belongs to another one. The message says so and shows neither."""


def new_authority(valid: Validity) -> CertificatePair:
    """A certificate that signed itself, and may sign others."""
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial is in the name: two authorities in one bundle must not be confused.
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


def issue(authority: CertificatePair, names: Sequence[str], valid: Validity) -> CertificatePair:
    """A certificate for a server with these DNS names and IP addresses."""
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


def check(pair: CertificatePair) -> Validity:
    """Raises `UnreadableCertificate` if it is no certificate with its own key."""
    if _certificate(pair.certificate).public_key() != _key(pair.key).public_key():
        raise UnreadableCertificate("the certificate and the key do not belong together")
    return validity(pair.certificate)


def validity(certificate: bytes) -> Validity:
    """Raises `UnreadableCertificate`."""
    read = _certificate(certificate)
    return Validity(read.not_valid_before_utc, read.not_valid_after_utc)


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """Raises `UnreadableCertificate`."""
    try:
        _certificate(certificate).verify_directly_issued_by(_certificate(authority))
    except (*_BROKEN, InvalidSignature):
        return False
    return True


def names_of(certificate: bytes) -> frozenset[str]:
    """Raises `UnreadableCertificate`."""
    try:
        found = _certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = found.get_values_for_type(x509.IPAddress)
    return frozenset([*found.get_values_for_type(x509.DNSName), *map(str, addresses)])


def split_bundle(bundle: bytes) -> list[bytes]:
    """The certificates of a bundle, one by one; whatever else is in it is left out."""
    found = []
    for pem in _PEM.findall(bundle):
        try:
            found.append(_certificate(pem).public_bytes(serialization.Encoding.PEM))
        except UnreadableCertificate:
            continue
    return found


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


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertificatePair:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return CertificatePair(certificate.public_bytes(pem), key.private_bytes(pem, pkcs8, serialization.NoEncryption()))


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        found = x509.load_pem_x509_certificate(pem)
        # `cryptography` reads each part only on access; a part that is broken must be found here.
        _ = found.public_key(), found.extensions, found.subject, found.issuer
        _ = found.not_valid_before_utc, found.not_valid_after_utc
    except _BROKEN:
        raise UnreadableCertificate("there is no certificate") from None
    return found


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except _BROKEN:
        raise UnreadableCertificate("there is no private key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UnreadableCertificate("the private key is not of the kind that Carrel makes")
    return key
