"""Keeps the webhook's certificates: made, renewed in time, and trusted by the API server before they are shown.

They live in one Secret of Carrel's own namespace (`tls.crt`, `tls.key`, `ca.crt`, `ca.key`), so that all replicas show
the same; who writes first wins, by the Secret's resourceVersion, and the others read again. `ca.crt` is a bundle: the
newest authority first, then those before it. It is put into the webhook configuration before a certificate is given
to the server, and an authority signs only when it has been in there for a while: an API server that has not heard of it
yet would refuse the certificate, and no GPU pod would be admitted.

To renew by hand, take `tls.crt` out of the Secret (a new certificate) or `ca.key` (a new authority).
"""

import base64
import binascii
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from carrel.admission.certificates import Notary, Pair, Unreadable, Validity
from carrel.kubernetes.cluster import AlreadyExists, Cluster, Conflict, NotFound
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS, SECRETS

log = logging.getLogger(__name__)

Json = dict[str, Any]

MOST_TRUSTED = 4
"""Authorities in a bundle, the newest ones: nothing is shown any more that an older one signed."""
TRIES = 5
BACKDATED = timedelta(hours=1)
"""Whoever's clock is a little behind believes a new certificate too."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    authority: timedelta = timedelta(days=3650)
    certificate: timedelta = timedelta(days=90)
    settles: timedelta = timedelta(minutes=10)
    """After so long every API server has heard of a new authority."""


@dataclass(frozen=True, slots=True)
class Names:
    """What is called how."""

    namespace: str
    secret: str
    configuration: str
    """Of the MutatingWebhookConfiguration."""
    served: tuple[str, ...]
    """Under which the API server calls the webhook."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is in the Secret."""

    authority: Pair | None = None
    trusted: tuple[bytes, ...] = ()
    """The newest authority first."""
    shown: Pair | None = None

    @property
    def bundle(self) -> bytes:
        return b"".join(self.trusted)


class Certificates:
    def __init__(
        self,
        cluster: Cluster,
        notary: Notary,
        names: Names,
        now: Callable[[], datetime],
        lifetimes: Lifetimes | None = None,
    ) -> None:
        self._cluster = cluster
        self._notary = notary
        self._names = names
        self._now = now
        self._lifetimes = lifetimes or Lifetimes()

    async def keep(self) -> Pair:
        """What to show from now on: it is in the Secret, and the API server has been told whom to trust."""
        kept = await self._agreed()
        await self._tell(base64.b64encode(kept.bundle).decode())
        assert kept.shown is not None, "nothing is agreed on without it"
        return kept.shown

    async def _agreed(self) -> Kept:
        for _ in range(TRIES):
            secret = await self._secret()
            kept = self._read((secret or {}).get("data") or {})
            renewed = self.renewed(kept, self._now())
            if renewed == kept:
                return kept
            try:
                await self._write(secret, renewed)
            except (AlreadyExists, Conflict):
                continue  # another replica was faster
            log.info("certificates_renewed authorities=%d", len(renewed.trusted))
            return renewed
        raise Conflict(409, "Conflict", f"Secret {self._names.secret} was changed by others {TRIES} times in a row")

    # --- what is due -------------------------------------------------------------------------------------------------

    def renewed(self, kept: Kept, now: datetime) -> Kept:
        """The same, with what is missing or would expire soon made anew."""
        trusted = tuple(each for each in kept.trusted if self._notary.validity(each).ends > now)[:MOST_TRUSTED]
        kept = replace(kept, trusted=trusted)
        if not self._is_authority_good(kept, now):
            authority = self._notary.authority(self._valid(now, self._lifetimes.authority))
            kept = replace(kept, authority=authority, trusted=(authority.certificate, *trusted)[:MOST_TRUSTED])
        assert kept.authority is not None
        if self._is_shown_good(kept, kept.authority, now):
            return kept
        valid = self._valid(now, self._lifetimes.certificate)
        return replace(kept, shown=self._notary.issue(kept.authority, self._names.served, valid))

    def _is_authority_good(self, kept: Kept, now: datetime) -> bool:
        """It outlives what it signs, and is the first of those that are trusted."""
        if kept.authority is None or kept.authority.certificate not in kept.trusted[:1]:
            return False
        valid = self._notary.validity(kept.authority.certificate)
        return valid.begins <= now and valid.ends >= now + self._lifetimes.certificate

    def _is_shown_good(self, kept: Kept, authority: Pair, now: datetime) -> bool:
        if kept.shown is None or self._notary.names(kept.shown.certificate) != frozenset(self._names.served):
            return False
        valid = self._notary.validity(kept.shown.certificate)
        if valid.begins > now:
            return False  # somebody's clock was far ahead; nobody else believes it
        left = valid.ends - now
        if not any(self._notary.is_by(kept.shown.certificate, each) for each in kept.trusted) or left <= timedelta(0):
            return False
        settled = self._notary.validity(authority.certificate).begins + BACKDATED + self._lifetimes.settles <= now
        if not settled:
            return True  # it may not be much longer, but the new authority is not known everywhere
        is_ours = self._notary.is_by(kept.shown.certificate, authority.certificate)
        return is_ours and left > self._lifetimes.certificate / 3

    def _valid(self, now: datetime, lifetime: timedelta) -> Validity:
        return Validity(now - BACKDATED, now + lifetime)

    # --- the Secret --------------------------------------------------------------------------------------------------

    async def _secret(self) -> Json | None:
        try:
            return await self._cluster.get(SECRETS, self._names.secret, self._names.namespace)
        except NotFound:
            return None

    def _read(self, data: Mapping[str, str]) -> Kept:
        trusted = tuple(self._notary.split(_decoded(data, "ca.crt")))
        authority = self._pair(trusted[0] if trusted else b"", _decoded(data, "ca.key"))
        return Kept(authority, trusted, self._pair(_decoded(data, "tls.crt"), _decoded(data, "tls.key")))

    def _pair(self, certificate: bytes, key: bytes) -> Pair | None:
        pair = Pair(certificate, key)
        try:
            self._notary.check(pair)
        except Unreadable:
            return None
        return pair

    async def _write(self, secret: Json | None, kept: Kept) -> None:
        assert kept.authority is not None and kept.shown is not None
        data = {
            "tls.crt": kept.shown.certificate,
            "tls.key": kept.shown.key,
            "ca.crt": kept.bundle,
            "ca.key": kept.authority.key,
        }
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        if secret is not None:
            await self._cluster.update(SECRETS, {**secret, "data": {**(secret.get("data") or {}), **encoded}})
            return
        metadata = {"name": self._names.secret, "namespace": self._names.namespace}
        body: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": encoded}
        await self._cluster.create(SECRETS, body, self._names.namespace)

    # --- the API server ----------------------------------------------------------------------------------------------

    async def _tell(self, bundle: str) -> None:
        """Whom to trust. Another replica says the same, so who is late has nothing left to say."""
        for _ in range(TRIES):
            try:
                configuration = await self._cluster.get(MUTATING_WEBHOOKS, self._names.configuration)
            except NotFound:
                log.warning("no_configuration name=%s", self._names.configuration)
                return
            webhooks: Sequence[Json] = configuration.get("webhooks") or ()
            told = [{**each, "clientConfig": {**each["clientConfig"], "caBundle": bundle}} for each in webhooks]
            if told == webhooks:
                return
            try:
                await self._cluster.update(MUTATING_WEBHOOKS, {**configuration, "webhooks": told})
            except Conflict:
                continue
            log.info("authority_told name=%s", self._names.configuration)
            return
        raise Conflict(
            409, "Conflict", f"{MUTATING_WEBHOOKS.kind} {self._names.configuration} was changed {TRIES} times in a row"
        )


def _decoded(data: Mapping[str, str], key: str) -> bytes:
    try:
        return base64.b64decode(data.get(key) or "", validate=True)
    except binascii.Error:
        return b""
