"""Keys, certificates and kubeconfigs of one test cluster. They are valid for one run and protect nothing else."""

import base64
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = datetime.timedelta(days=30)
LEEWAY = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that signs for servers (by address) and for clients (by user and groups)."""

    def __init__(self, folder: Path, now: datetime.datetime) -> None:
        folder.mkdir()
        self._folder = folder
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("carrel-testbed")
        certificate = (
            self._draft(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str, addresses: Sequence[IPv4Address], hosts: Sequence[str]) -> Pair:
        names = [*map(x509.DNSName, hosts), *map(x509.IPAddress, addresses)]
        return self._issue(name, _name(name), ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName(names))

    def client(self, user: str, groups: Sequence[str] = ()) -> Pair:
        file = user.replace(":", "-")
        return self._issue(file, _name(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH)

    def signing_key(self) -> Pair:
        """A key that signs the tokens of ServiceAccounts, and its public half."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = self._folder / "service-accounts.pub"
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        return Pair(public, self._write_key("service-accounts", key))

    def kubeconfig(self, file: Path, server: str, credential: Pair | str) -> Path:
        """By client certificate or by bearer token. Everything is inside the file, so that it can be copied."""
        if isinstance(credential, Pair):
            user = {
                "client-certificate-data": _base64(credential.certificate),
                "client-key-data": _base64(credential.key),
            }
        else:
            user = {"token": credential}
        name = "carrel-testbed"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": name, "cluster": {"server": server, "certificate-authority-data": _base64(self.certificate)}}
            ],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(document))
        return file

    def _issue(
        self, file: str, subject: x509.Name, usage: x509.ObjectIdentifier, *extensions: x509.ExtensionType
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        draft = self._draft(subject, key).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        for extension in extensions:
            draft = draft.add_extension(extension, critical=False)
        certificate = self._folder / f"{file}.crt"
        signed = draft.sign(self._key, hashes.SHA256())
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return Pair(certificate, self._write_key(file, key))

    def _draft(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - LEEWAY)
            .not_valid_after(self._now + LIFE)
        )

    def _write_key(self, file: str, key: ec.EllipticCurvePrivateKey) -> Path:
        path = self._folder / f"{file}.key"
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        return path


def _name(common: str, organizations: Sequence[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
