"""Makes and renews the webhook's certificates. The API server trusts each of them before it is served.

They are in one Secret of Carrel's own namespace (`tls.crt`, `tls.key`, `ca.crt`, `ca.key`), so that all replicas serve
the same. The first writer wins, by the Secret's resourceVersion; the others read it again. `ca.crt` is a bundle: the
newest authority first, then older ones. It is written into the webhook configuration before the server gets a
certificate, and a new authority signs only after it has been there for a while: an API server that does not know it
yet would refuse the certificate, and no GPU pod would be admitted.

To renew by hand, remove `tls.crt` from the Secret (a new certificate) or `ca.key` (a new authority).
"""

import base64
import binascii
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from carrel.admission import certificates
from carrel.admission.certificates import CertificatePair, UnreadableCertificate, Validity
from carrel.kubernetes.cluster import AlreadyExists, Cluster, Conflict, NotFound
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Resource

log = logging.getLogger(__name__)

Json = dict[str, Any]

MOST_TRUSTED = 4
"""Authorities in a bundle, the newest ones: no certificate that an older one signed is served any more."""
TRIES = 5
OWN_PATHS = {MUTATING_WEBHOOKS.kind: "/mutate", VALIDATING_WEBHOOKS.kind: "/allocate"}
"""Where a configuration names none, because only the webhook knows its path secret."""
BACKDATED = timedelta(hours=1)
"""So that a client whose clock is a little behind accepts a new certificate too."""


@dataclass(frozen=True, slots=True)
class CertificateLifetimes:
    authority: timedelta = timedelta(days=3650)
    certificate: timedelta = timedelta(days=90)
    """It is renewed when a third of this time is left."""
    settling: timedelta = timedelta(minutes=10)
    """After this time every API server knows a new authority."""


@dataclass(frozen=True, slots=True)
class CertificateNames:
    namespace: str
    secret: str
    configuration: str
    """Name of the MutatingWebhookConfiguration, and of each other one."""
    served: tuple[str, ...]
    """The names by which the API server calls the webhook, besides the Services in the webhook configuration."""
    path_secrets: Sequence[bytes] = ()
    """The first segment of the path by which the API server calls it: the newest, which is the first, is written."""
    kinds: tuple[Resource[Any], ...] = (MUTATING_WEBHOOKS,)
    """Of the webhook configurations."""


@dataclass(frozen=True, slots=True)
class StoredCertificates:
    """The content of the Secret."""

    authority: CertificatePair | None = None
    trusted: tuple[bytes, ...] = ()
    """The newest authority first."""
    served: CertificatePair | None = None

    @property
    def bundle(self) -> bytes:
        return b"".join(self.trusted)


class CertificateRenewal:
    def __init__(
        self,
        cluster: Cluster,
        names: CertificateNames,
        now: Callable[[], datetime],
        lifetimes: CertificateLifetimes | None = None,
    ) -> None:
        self._cluster = cluster
        self._names = names
        self._now = now
        self._lifetimes = lifetimes or CertificateLifetimes()

    async def renew(self) -> CertificatePair:
        """The certificate to serve. It is in the Secret, and its authority in the webhook configuration."""
        stored = await self._stored_and_renewed(await self._called_names())
        for kind in self._names.kinds:
            await self._write_authorities(kind, base64.b64encode(stored.bundle).decode())
        assert stored.served is not None, "a certificate is always stored"
        return stored.served

    async def _called_names(self) -> frozenset[str]:
        """Return the names by which the webhook configuration calls the webhook, besides the names of its own Service:
        MAIA's Service is called otherwise, and a webhook outside of the cluster is called by a URL."""
        names = frozenset(self._names.served)
        for kind in self._names.kinds:
            try:
                configuration = await self._cluster.get(kind, self._names.configuration)
            except NotFound:
                continue
            names = names.union(*map(_names_in, configuration.get("webhooks") or ()))
        return names

    async def _stored_and_renewed(self, names: frozenset[str]) -> StoredCertificates:
        for _ in range(TRIES):
            secret = await self._secret()
            stored = self._read((secret or {}).get("data") or {})
            renewed = self.renewed(stored, self._now(), names)
            if renewed == stored:
                return stored
            try:
                await self._write(secret, renewed)
            except (AlreadyExists, Conflict):
                continue  # another replica was faster
            log.info("certificates_renewed authorities=%d", len(renewed.trusted))
            return renewed
        raise Conflict(409, "Conflict", f"Secret {self._names.secret} was changed by others {TRIES} times in a row")

    # --- what is due -------------------------------------------------------------------------------------------------

    def renewed(self, stored: StoredCertificates, now: datetime, names: frozenset[str]) -> StoredCertificates:
        """Return them with new certificates for those that are missing, lack a name or expire soon."""
        trusted = tuple(each for each in stored.trusted if certificates.validity(each).ends > now)[:MOST_TRUSTED]
        stored = replace(stored, trusted=trusted)
        if not self._is_authority_good(stored, now):
            authority = certificates.new_authority(self._valid(now, self._lifetimes.authority))
            stored = replace(stored, authority=authority, trusted=(authority.certificate, *trusted)[:MOST_TRUSTED])
        assert stored.authority is not None
        is_named = stored.served is not None and certificates.names_of(stored.served.certificate) == names
        if is_named and self._is_served_good(stored, stored.authority, now):
            return stored
        valid = self._valid(now, self._lifetimes.certificate)
        return replace(stored, served=certificates.issue(stored.authority, sorted(names), valid))

    def _is_authority_good(self, stored: StoredCertificates, now: datetime) -> bool:
        """Whether it is valid longer than what it signs, and is the first of the trusted ones."""
        if stored.authority is None or stored.authority.certificate not in stored.trusted[:1]:
            return False
        valid = certificates.validity(stored.authority.certificate)
        return valid.begins <= now and valid.ends >= now + self._lifetimes.certificate

    def _is_served_good(self, stored: StoredCertificates, authority: CertificatePair, now: datetime) -> bool:
        if stored.served is None:
            return False
        valid = certificates.validity(stored.served.certificate)
        if valid.begins > now:
            return False  # made by a clock that was far ahead; no other clock accepts it
        left = valid.ends - now
        if not any(
            certificates.is_signed_by(stored.served.certificate, each) for each in stored.trusted
        ) or left <= timedelta(0):
            return False
        settled = certificates.validity(authority.certificate).begins + BACKDATED + self._lifetimes.settling <= now
        if not settled:
            return True  # it may expire soon, but not every API server knows the new authority yet
        is_ours = certificates.is_signed_by(stored.served.certificate, authority.certificate)
        return is_ours and left > self._lifetimes.certificate / 3

    def _valid(self, now: datetime, lifetime: timedelta) -> Validity:
        return Validity(now - BACKDATED, now + lifetime)

    # --- the Secret --------------------------------------------------------------------------------------------------

    async def _secret(self) -> Json | None:
        try:
            return await self._cluster.get(SECRETS, self._names.secret, self._names.namespace)
        except NotFound:
            return None

    def _read(self, data: Mapping[str, str]) -> StoredCertificates:
        trusted = tuple(certificates.split_bundle(_decoded(data, "ca.crt")))
        authority = self._pair(trusted[0] if trusted else b"", _decoded(data, "ca.key"))
        return StoredCertificates(authority, trusted, self._pair(_decoded(data, "tls.crt"), _decoded(data, "tls.key")))

    def _pair(self, certificate: bytes, key: bytes) -> CertificatePair | None:
        pair = CertificatePair(certificate, key)
        try:
            certificates.check(pair)
        except UnreadableCertificate:
            return None
        return pair

    async def _write(self, secret: Json | None, stored: StoredCertificates) -> None:
        assert stored.authority is not None and stored.served is not None
        data = {
            "tls.crt": stored.served.certificate,
            "tls.key": stored.served.key,
            "ca.crt": stored.bundle,
            "ca.key": stored.authority.key,
        }
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        if secret is not None:
            await self._cluster.update(SECRETS, {**secret, "data": {**(secret.get("data") or {}), **encoded}})
            return
        metadata = {"name": self._names.secret, "namespace": self._names.namespace}
        body: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": encoded}
        await self._cluster.create(SECRETS, body, self._names.namespace)

    # --- the API server ----------------------------------------------------------------------------------------------

    def _client_config(self, written: Json, bundle: str, own_path: str) -> Json:
        trusting = {**written, "caBundle": bundle}
        if not self._names.path_secrets:
            return trusting
        secret = self._names.path_secrets[0].decode()
        if "url" in written:
            where = urlsplit(written["url"])
            return {**trusting, "url": urlunsplit(where._replace(path=_under(secret, where.path)))}
        service = written.get("service") or {}
        return {**trusting, "service": {**service, "path": _under(secret, service.get("path") or own_path)}}

    async def _write_authorities(self, kind: Resource[Any], bundle: str) -> None:
        """Into the webhook configuration. All replicas write the same, so the later ones change nothing."""
        for _ in range(TRIES):
            try:
                configuration = await self._cluster.get(kind, self._names.configuration)
            except NotFound:
                log.warning("no_configuration kind=%s name=%s", kind.kind, self._names.configuration)
                return
            webhooks: Sequence[Json] = configuration.get("webhooks") or ()
            updated = [
                {**each, "clientConfig": self._client_config(each["clientConfig"], bundle, OWN_PATHS[kind.kind])}
                for each in webhooks
            ]
            if updated == webhooks:
                return
            try:
                await self._cluster.update(kind, {**configuration, "webhooks": updated})
            except Conflict:
                continue
            log.info("authority_written name=%s", self._names.configuration)
            return
        raise Conflict(409, "Conflict", f"{kind.kind} {self._names.configuration} was changed {TRIES} times in a row")


def _names_in(webhook: Json) -> tuple[str, ...]:
    client_config = webhook.get("clientConfig", {})
    if host := urlsplit(client_config.get("url", "")).hostname:
        return (host,)
    service = client_config.get("service") or {}
    if not service.get("name") or not service.get("namespace"):
        return ()
    return service_names(service["name"], service["namespace"])


def service_names(name: str, namespace: str) -> tuple[str, ...]:
    """The names by which a Service is called within the cluster."""
    return (f"{name}.{namespace}.svc", f"{name}.{namespace}", f"{name}.{namespace}.svc.cluster.local")


def _under(secret: str, path: str) -> str:
    """The last segment is the webhook's own path."""
    return f"/{secret}/{path.rpartition('/')[2]}"


def _decoded(data: Mapping[str, str], key: str) -> bytes:
    try:
        return base64.b64decode(data.get(key) or "", validate=True)
    except binascii.Error:
        return b""
