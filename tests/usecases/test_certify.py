"""The webhook's certificates: made, shared, renewed in time, and trusted before they are shown."""

import base64
import ssl
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from carrel.admission.certificate_renewal import Certificates, Lifetimes, Names
from carrel.admission.certificates import Pair, Unreadable, Validity
from carrel.admission.x509 import Shown, X509Notary
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Conflict, JsonPatch
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS, NAMESPACES, SECRETS
from carrel.manifests import webhooks
from kubernetes_in_memory import EmbeddedApi
from tests.kit.lab import Clock

START = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
NOTARY = X509Notary()
NAMES = Names("carrel", "carrel-webhook-tls", "carrel", ("carrel-webhook.carrel.svc", "127.0.0.1"))


class House:
    """The embedded API with the webhook configurations, and as many replicas as a test wants."""

    def __init__(self) -> None:
        self.client = Client(EmbeddedApi())
        self.clock = Clock(START)

    async def furnish(self) -> "House":
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "carrel"}}
        await self.client.create(NAMESPACES, body)
        for each in webhooks(for_embedded_api=True):
            await self.client.create(MUTATING_WEBHOOKS, each)
        return self

    def replica(self, names: Names = NAMES, **lifetimes: timedelta) -> Certificates:
        return Certificates(self.client, NOTARY, names, self.clock, Lifetimes(**lifetimes))

    async def secret(self) -> dict[str, bytes]:
        data = (await self.client.get(SECRETS, NAMES.secret, "carrel"))["data"]
        return {key: base64.b64decode(value) for key, value in data.items()}

    async def take_out(self, key: str) -> None:
        """As an admin does who wants a new one."""
        patch = JsonPatch([{"op": "remove", "path": f"/data/{key}"}])
        await self.client.patch(SECRETS, NAMES.secret, patch, "carrel")

    async def trusted(self) -> list[bytes]:
        """The authorities that the API server is told to trust."""
        (webhook,) = (await self.client.get(MUTATING_WEBHOOKS, "carrel"))["webhooks"]
        return NOTARY.split(base64.b64decode(webhook["clientConfig"]["caBundle"]))

    async def is_trusted(self, shown: Pair) -> bool:
        return any(NOTARY.is_by(shown.certificate, each) for each in await self.trusted())


async def test_the_first_replica_makes_them_tells_the_api_server_and_the_others_show_the_same() -> None:
    house = await House().furnish()

    shown = await house.replica().keep()

    assert await house.replica().keep() == shown
    assert await house.is_trusted(shown)
    assert NOTARY.names(shown.certificate) == {"carrel-webhook.carrel.svc", "127.0.0.1"}
    assert set(await house.secret()) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}


async def test_nothing_is_written_while_nothing_is_due() -> None:
    house = await House().furnish()
    await house.replica().keep()
    before = (await house.client.get(MUTATING_WEBHOOKS, "carrel"))["metadata"]

    house.clock.now += 50 * DAY
    await house.replica().keep()

    assert (await house.client.get(MUTATING_WEBHOOKS, "carrel"))["metadata"] == before


async def test_a_certificate_is_renewed_when_a_third_of_it_is_left_by_the_same_authority() -> None:
    house = await House().furnish()
    first, authorities = await house.replica().keep(), await house.trusted()

    house.clock.now += 59 * DAY
    assert await house.replica().keep() == first
    house.clock.now += 2 * DAY
    second = await house.replica().keep()

    assert second != first and await house.trusted() == authorities
    assert NOTARY.validity(second.certificate).ends == house.clock.now + 90 * DAY


async def test_a_new_authority_is_trusted_beside_the_old_one_before_it_signs() -> None:
    house = await House().furnish()
    first = await house.replica().keep()
    old = await house.trusted()

    await house.take_out("ca.key")
    assert await house.replica().keep() == first, "no API server may be shown what it does not know yet"
    assert (await house.trusted())[1:] == old
    house.clock.now += timedelta(minutes=11)
    second = await house.replica().keep()

    assert NOTARY.is_by(second.certificate, (await house.trusted())[0])
    assert await house.is_trusted(first), "a replica that is behind still shows the old one"


async def test_an_authority_is_replaced_before_it_could_sign_what_outlives_it() -> None:
    house = await House().furnish()
    await house.replica(authority=200 * DAY).keep()

    for _ in range(40):
        house.clock.now += 10 * DAY
        shown = await house.replica(authority=200 * DAY).keep()
        assert await house.is_trusted(shown)
        assert NOTARY.validity(shown.certificate).ends > house.clock.now
    assert len(await house.trusted()) <= 4


async def test_a_certificate_that_was_taken_out_or_broken_is_made_anew() -> None:
    house = await House().furnish()
    shown = [await house.replica().keep()]
    for key in ("tls.crt", "tls.key"):
        await house.take_out(key)
        shown.append(await house.replica().keep())
    broken = JsonPatch([{"op": "replace", "path": "/data/tls.key", "value": base64.b64encode(b"rubbish").decode()}])
    await house.client.patch(SECRETS, NAMES.secret, broken, "carrel")
    shown.append(await house.replica().keep())

    assert len({each.certificate for each in shown}) == 4
    assert len(await house.trusted()) == 1


@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
async def test_whatever_is_left_of_a_broken_secret_it_is_made_whole(key: str) -> None:
    house = await House().furnish()
    await house.replica().keep()
    kept, random = await house.secret(), Random(key)
    first, *lines, last = kept[key].splitlines()
    for _ in range(60):
        broken = bytearray(base64.b64decode(b"".join(lines)))
        broken[random.randrange(len(broken))] ^= random.randrange(1, 256)
        value = base64.b64encode(b"\n".join([first, base64.b64encode(broken), last])).decode()
        change = JsonPatch([{"op": "replace", "path": f"/data/{key}", "value": value}])
        await house.client.patch(SECRETS, NAMES.secret, change, "carrel")

        assert await house.is_trusted(await house.replica().keep())


async def test_what_a_clock_that_was_far_ahead_has_made_is_made_anew() -> None:
    house = await House().furnish()
    house.clock.now += DAY
    ahead = await house.replica().keep()
    house.clock.now -= DAY
    shown = await house.replica().keep()

    assert shown != ahead and NOTARY.validity(shown.certificate).begins <= house.clock.now
    assert NOTARY.validity((await house.trusted())[0]).begins <= house.clock.now


async def test_a_certificate_is_not_shown_while_the_api_server_could_not_be_told_whom_to_trust() -> None:
    house = await House().furnish()
    update = house.client.update

    async def changed_by_others(resource: Any, body: Any) -> Any:
        if resource is MUTATING_WEBHOOKS:
            raise Conflict(409, "Conflict", "changed")
        return await update(resource, body)

    house.client.update = changed_by_others  # type: ignore[method-assign,assignment] # whenever it is written

    with pytest.raises(Conflict):
        await house.replica().keep()


async def test_another_name_needs_another_certificate() -> None:
    house = await House().furnish()
    first = await house.replica().keep()
    renamed = Names(NAMES.namespace, NAMES.secret, NAMES.configuration, ("elsewhere",))

    assert await house.replica(renamed).keep() != first


async def test_two_replicas_that_begin_at_once_agree() -> None:
    house = await House().furnish()
    one, other = house.replica(), house.replica()
    raced = False

    async def racing(*arguments: Any, **more: Any) -> Any:
        nonlocal raced
        if not raced:
            raced = True
            await other.keep()
        return await create(*arguments, **more)

    create = house.client.create
    house.client.create = racing  # type: ignore[method-assign] # between the first one's look and its write

    assert await one.keep() == await other.keep()


async def test_an_admin_who_applies_the_manifests_again_is_corrected() -> None:
    house = await House().furnish()
    shown = await house.replica().keep()
    for each in webhooks(for_embedded_api=True):
        version = (await house.client.get(MUTATING_WEBHOOKS, "carrel"))["metadata"]["resourceVersion"]
        again = {**each, "metadata": {"name": "carrel", "resourceVersion": version}}
        await house.client.update(MUTATING_WEBHOOKS, again)

    assert await house.replica().keep() == shown and await house.is_trusted(shown)


async def test_without_configurations_the_certificates_are_kept_all_the_same() -> None:
    house = House()
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "carrel"}}
    await house.client.create(NAMESPACES, body)

    assert await house.replica().keep() == await house.replica().keep()


async def test_what_is_shown_changes_only_to_a_certificate_with_its_own_key() -> None:
    valid = Validity(START, START + DAY)
    one, other = (NOTARY.issue(NOTARY.authority(valid), ["a"], valid) for _ in range(2))
    shown = Shown()

    assert shown.show(one) and not shown.show(one)
    with pytest.raises(Unreadable):
        shown.show(Pair(other.certificate, one.key))
    assert shown.pair == one and shown.expires_at == (START + DAY).timestamp()
    assert shown.context.minimum_version == ssl.TLSVersion.TLSv1_2
