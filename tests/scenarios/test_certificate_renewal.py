"""The webhook's certificates: made, shared, renewed in time, and trusted before they are served."""

import base64
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from carrel.admission import certificates
from carrel.admission.certificate_renewal import CertificateLifetimes, CertificateNames, CertificateRenewal
from carrel.admission.certificates import CertificatePair, UnreadableCertificate, Validity
from carrel.admission.served_certificate import ServedCertificate
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Conflict, JsonPatch
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS, NAMESPACES, SECRETS
from carrel.manifests import webhooks
from kubernetes_in_memory import EmbeddedApi
from tests.kit.lab import Clock

START = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = CertificateNames("carrel", "carrel-webhook-tls", "carrel", ("carrel-webhook.carrel.svc", "127.0.0.1"))


class CertificateCluster:
    """The embedded API with the webhook configurations, and as many replicas as a test wants."""

    def __init__(self) -> None:
        self.client = Client(EmbeddedApi())
        self.clock = Clock(START)

    async def with_webhooks(self) -> "CertificateCluster":
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "carrel"}}
        await self.client.create(NAMESPACES, body)
        for each in webhooks(for_embedded_api=True):
            await self.client.create(MUTATING_WEBHOOKS, each)
        return self

    def replica(self, names: CertificateNames = NAMES, **lifetimes: timedelta) -> CertificateRenewal:
        return CertificateRenewal(self.client, names, self.clock, CertificateLifetimes(**lifetimes))

    async def secret(self) -> dict[str, bytes]:
        data = (await self.client.get(SECRETS, NAMES.secret, "carrel"))["data"]
        return {key: base64.b64decode(value) for key, value in data.items()}

    async def remove_key(self, key: str) -> None:
        """As an admin does to get a new one."""
        patch = JsonPatch([{"op": "remove", "path": f"/data/{key}"}])
        await self.client.patch(SECRETS, NAMES.secret, patch, "carrel")

    async def trusted(self) -> list[bytes]:
        """The authorities that the API server is told to trust."""
        (webhook,) = (await self.client.get(MUTATING_WEBHOOKS, "carrel"))["webhooks"]
        return certificates.split_bundle(base64.b64decode(webhook["clientConfig"]["caBundle"]))

    async def is_trusted(self, served: CertificatePair) -> bool:
        return any(certificates.is_signed_by(served.certificate, each) for each in await self.trusted())


async def test_the_first_replica_makes_certificates_that_the_api_server_trusts_and_all_replicas_serve_them() -> None:
    cluster = await CertificateCluster().with_webhooks()

    served = await cluster.replica().renew()

    assert await cluster.replica().renew() == served
    assert await cluster.is_trusted(served)
    assert certificates.names_of(served.certificate) == {
        "carrel-webhook.carrel.svc",
        "carrel-webhook.carrel",
        "carrel-webhook.carrel.svc.cluster.local",
        "127.0.0.1",
    }
    assert set(await cluster.secret()) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}


async def test_nothing_is_written_while_nothing_is_due() -> None:
    cluster = await CertificateCluster().with_webhooks()
    await cluster.replica().renew()
    before = (await cluster.client.get(MUTATING_WEBHOOKS, "carrel"))["metadata"]

    cluster.clock.now += 50 * DAY
    await cluster.replica().renew()

    assert (await cluster.client.get(MUTATING_WEBHOOKS, "carrel"))["metadata"] == before


async def test_the_same_authority_renews_a_certificate_when_a_third_of_its_time_is_left() -> None:
    cluster = await CertificateCluster().with_webhooks()
    first, authorities = await cluster.replica().renew(), await cluster.trusted()

    cluster.clock.now += 59 * DAY
    assert await cluster.replica().renew() == first
    cluster.clock.now += 2 * DAY
    second = await cluster.replica().renew()

    assert second != first and await cluster.trusted() == authorities
    assert certificates.validity(second.certificate).ends == cluster.clock.now + 90 * DAY


async def test_a_new_authority_is_trusted_beside_the_old_one_before_it_signs() -> None:
    cluster = await CertificateCluster().with_webhooks()
    first = await cluster.replica().renew()
    old = await cluster.trusted()

    await cluster.remove_key("ca.key")
    assert await cluster.replica().renew() == first, (
        "no API server may get a certificate whose authority it does not know yet"
    )
    assert (await cluster.trusted())[1:] == old
    cluster.clock.now += timedelta(minutes=11)
    second = await cluster.replica().renew()

    assert certificates.is_signed_by(second.certificate, (await cluster.trusted())[0])
    assert await cluster.is_trusted(first), "a replica that is behind still serves the old one"


async def test_an_authority_is_replaced_before_it_signs_a_certificate_that_is_valid_longer() -> None:
    cluster = await CertificateCluster().with_webhooks()
    await cluster.replica(authority=200 * DAY).renew()

    for _ in range(40):
        cluster.clock.now += 10 * DAY
        served = await cluster.replica(authority=200 * DAY).renew()
        assert await cluster.is_trusted(served)
        assert certificates.validity(served.certificate).ends > cluster.clock.now
    assert len(await cluster.trusted()) <= 4


async def test_a_certificate_that_is_removed_or_broken_is_made_again() -> None:
    cluster = await CertificateCluster().with_webhooks()
    served = [await cluster.replica().renew()]
    for key in ("tls.crt", "tls.key"):
        await cluster.remove_key(key)
        served.append(await cluster.replica().renew())
    broken = JsonPatch([{"op": "replace", "path": "/data/tls.key", "value": base64.b64encode(b"rubbish").decode()}])
    await cluster.client.patch(SECRETS, NAMES.secret, broken, "carrel")
    served.append(await cluster.replica().renew())

    assert len({each.certificate for each in served}) == 4
    assert len(await cluster.trusted()) == 1


@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
async def test_a_broken_secret_is_repaired(key: str) -> None:
    cluster = await CertificateCluster().with_webhooks()
    await cluster.replica().renew()
    kept, random = await cluster.secret(), Random(key)
    first, *lines, last = kept[key].splitlines()
    for _ in range(60):
        broken = bytearray(base64.b64decode(b"".join(lines)))
        broken[random.randrange(len(broken))] ^= random.randrange(1, 256)
        value = base64.b64encode(b"\n".join([first, base64.b64encode(broken), last])).decode()
        change = JsonPatch([{"op": "replace", "path": f"/data/{key}", "value": value}])
        await cluster.client.patch(SECRETS, NAMES.secret, change, "carrel")

        assert await cluster.is_trusted(await cluster.replica().renew())


async def test_a_certificate_that_is_not_valid_yet_is_made_again() -> None:
    cluster = await CertificateCluster().with_webhooks()
    cluster.clock.now += DAY
    ahead = await cluster.replica().renew()
    cluster.clock.now -= DAY
    served = await cluster.replica().renew()

    assert served != ahead and certificates.validity(served.certificate).begins <= cluster.clock.now
    assert certificates.validity((await cluster.trusted())[0]).begins <= cluster.clock.now


async def test_a_certificate_is_not_served_before_its_authority_is_in_the_webhook_configuration() -> None:
    cluster = await CertificateCluster().with_webhooks()
    update = cluster.client.update

    async def changed_by_others(resource: Any, body: Any) -> Any:
        if resource is MUTATING_WEBHOOKS:
            raise Conflict(409, "Conflict", "changed")
        return await update(resource, body)

    cluster.client.update = changed_by_others  # type: ignore[method-assign,assignment] # whenever it is written

    with pytest.raises(Conflict):
        await cluster.replica().renew()


async def test_another_name_needs_another_certificate() -> None:
    cluster = await CertificateCluster().with_webhooks()
    first = await cluster.replica().renew()
    renamed = CertificateNames(NAMES.namespace, NAMES.secret, NAMES.configuration, ("elsewhere",))

    assert await cluster.replica(renamed).renew() != first


async def test_in_maias_place_the_certificate_carries_the_name_of_maias_service() -> None:
    cluster = await CertificateCluster().with_webhooks()
    (ours,) = webhooks(for_embedded_api=True)
    service = {"namespace": "gpu-booking", "name": "gpu-booking-mutating-webhook", "path": "/mutate", "port": 443}
    maias = {
        **ours,
        "metadata": {"name": "gpu-booking-webhook"},
        "webhooks": [{**ours["webhooks"][0], "clientConfig": {"service": service}}],
    }
    await cluster.client.create(MUTATING_WEBHOOKS, maias)
    names = CertificateNames("carrel", NAMES.secret, "gpu-booking-webhook", ("carrel-webhook.carrel.svc",))

    served = await cluster.replica(names).renew()

    assert "gpu-booking-mutating-webhook.gpu-booking.svc" in certificates.names_of(served.certificate)
    assert await cluster.replica(names).renew() == served, "it is made once"


async def test_outside_of_the_cluster_the_certificate_carries_the_host_of_the_url() -> None:
    cluster = await CertificateCluster().with_webhooks()
    (first, *_) = (found := await cluster.client.get(MUTATING_WEBHOOKS, "carrel"))["webhooks"]
    first["clientConfig"] = {"url": "https://gpus.lab.example:8443/mutate"}
    await cluster.client.update(MUTATING_WEBHOOKS, found)

    served = await cluster.replica().renew()

    assert "gpus.lab.example" in certificates.names_of(served.certificate)


async def test_two_replicas_that_start_at_once_agree() -> None:
    cluster = await CertificateCluster().with_webhooks()
    one, other = cluster.replica(), cluster.replica()
    raced = False

    async def racing(*arguments: Any, **more: Any) -> Any:
        nonlocal raced
        if not raced:
            raced = True
            await other.renew()
        return await create(*arguments, **more)

    create = cluster.client.create
    cluster.client.create = racing  # type: ignore[method-assign] # between its read and its write

    assert await one.renew() == await other.renew()


async def test_the_authority_is_written_again_after_an_admin_applies_the_manifests() -> None:
    cluster = await CertificateCluster().with_webhooks()
    served = await cluster.replica().renew()
    for each in webhooks(for_embedded_api=True):
        version = (await cluster.client.get(MUTATING_WEBHOOKS, "carrel"))["metadata"]["resourceVersion"]
        again = {**each, "metadata": {"name": "carrel", "resourceVersion": version}}
        await cluster.client.update(MUTATING_WEBHOOKS, again)

    assert await cluster.replica().renew() == served and await cluster.is_trusted(served)


async def test_certificates_are_made_also_without_a_webhook_configuration() -> None:
    cluster = CertificateCluster()
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "carrel"}}
    await cluster.client.create(NAMESPACES, body)

    assert await cluster.replica().renew() == await cluster.replica().renew()


async def test_only_a_certificate_with_its_own_key_is_loaded() -> None:
    valid = Validity(START, START + DAY)
    one, other = (certificates.issue(certificates.new_authority(valid), ["a"], valid) for _ in range(2))
    served = ServedCertificate()

    assert served.load(one) and not served.load(one)
    with pytest.raises(UnreadableCertificate):
        served.load(CertificatePair(other.certificate, one.key))
    assert served.pair == one and served.expires_at == (START + DAY).timestamp()
    assert served.context().minimum_version == ssl.TLSVersion.TLSv1_2


async def test_where_only_the_webhook_knows_its_path_secret_it_writes_the_whole_path() -> None:
    """With a Secret of the admin's own the chart names no path, so that neither helm nor GitOps takes it back."""
    cluster = await CertificateCluster().with_webhooks()
    found = await cluster.client.get(MUTATING_WEBHOOKS, "carrel")
    del found["webhooks"][0]["clientConfig"]["service"]["path"]
    await cluster.client.update(MUTATING_WEBHOOKS, found)

    await cluster.replica(replace(NAMES, path_secrets=(b"0123456789abcdef",))).renew()

    (webhook,) = (await cluster.client.get(MUTATING_WEBHOOKS, "carrel"))["webhooks"]
    assert webhook["clientConfig"]["service"]["path"] == "/0123456789abcdef/mutate"
