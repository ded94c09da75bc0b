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


class ClusterOptions:
    """The embedded API with the webhook configurations, and as many replicas as a test wants."""

    def __init__(self) -> None:
        self.client = Client(EmbeddedApi())
        self.clock = Clock(START)

    async def furnish(self) -> "ClusterOptions":
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
    options = await ClusterOptions().furnish()

    shown = await options.replica().keep()

    assert await options.replica().keep() == shown
    assert await options.is_trusted(shown)
    assert NOTARY.names(shown.certificate) == {"carrel-webhook.carrel.svc", "127.0.0.1"}
    assert set(await options.secret()) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}


async def test_nothing_is_written_while_nothing_is_due() -> None:
    options = await ClusterOptions().furnish()
    await options.replica().keep()
    before = (await options.client.get(MUTATING_WEBHOOKS, "carrel"))["metadata"]

    options.clock.now += 50 * DAY
    await options.replica().keep()

    assert (await options.client.get(MUTATING_WEBHOOKS, "carrel"))["metadata"] == before


async def test_a_certificate_is_renewed_when_a_third_of_it_is_left_by_the_same_authority() -> None:
    options = await ClusterOptions().furnish()
    first, authorities = await options.replica().keep(), await options.trusted()

    options.clock.now += 59 * DAY
    assert await options.replica().keep() == first
    options.clock.now += 2 * DAY
    second = await options.replica().keep()

    assert second != first and await options.trusted() == authorities
    assert NOTARY.validity(second.certificate).ends == options.clock.now + 90 * DAY


async def test_a_new_authority_is_trusted_beside_the_old_one_before_it_signs() -> None:
    options = await ClusterOptions().furnish()
    first = await options.replica().keep()
    old = await options.trusted()

    await options.take_out("ca.key")
    assert await options.replica().keep() == first, "no API server may be shown what it does not know yet"
    assert (await options.trusted())[1:] == old
    options.clock.now += timedelta(minutes=11)
    second = await options.replica().keep()

    assert NOTARY.is_by(second.certificate, (await options.trusted())[0])
    assert await options.is_trusted(first), "a replica that is behind still shows the old one"


async def test_an_authority_is_replaced_before_it_could_sign_what_outlives_it() -> None:
    options = await ClusterOptions().furnish()
    await options.replica(authority=200 * DAY).keep()

    for _ in range(40):
        options.clock.now += 10 * DAY
        shown = await options.replica(authority=200 * DAY).keep()
        assert await options.is_trusted(shown)
        assert NOTARY.validity(shown.certificate).ends > options.clock.now
    assert len(await options.trusted()) <= 4


async def test_a_certificate_that_was_taken_out_or_broken_is_made_anew() -> None:
    options = await ClusterOptions().furnish()
    shown = [await options.replica().keep()]
    for key in ("tls.crt", "tls.key"):
        await options.take_out(key)
        shown.append(await options.replica().keep())
    broken = JsonPatch([{"op": "replace", "path": "/data/tls.key", "value": base64.b64encode(b"rubbish").decode()}])
    await options.client.patch(SECRETS, NAMES.secret, broken, "carrel")
    shown.append(await options.replica().keep())

    assert len({each.certificate for each in shown}) == 4
    assert len(await options.trusted()) == 1


@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
async def test_whatever_is_left_of_a_broken_secret_it_is_made_whole(key: str) -> None:
    options = await ClusterOptions().furnish()
    await options.replica().keep()
    kept, random = await options.secret(), Random(key)
    first, *lines, last = kept[key].splitlines()
    for _ in range(60):
        broken = bytearray(base64.b64decode(b"".join(lines)))
        broken[random.randrange(len(broken))] ^= random.randrange(1, 256)
        value = base64.b64encode(b"\n".join([first, base64.b64encode(broken), last])).decode()
        change = JsonPatch([{"op": "replace", "path": f"/data/{key}", "value": value}])
        await options.client.patch(SECRETS, NAMES.secret, change, "carrel")

        assert await options.is_trusted(await options.replica().keep())


async def test_what_a_clock_that_was_far_ahead_has_made_is_made_anew() -> None:
    options = await ClusterOptions().furnish()
    options.clock.now += DAY
    ahead = await options.replica().keep()
    options.clock.now -= DAY
    shown = await options.replica().keep()

    assert shown != ahead and NOTARY.validity(shown.certificate).begins <= options.clock.now
    assert NOTARY.validity((await options.trusted())[0]).begins <= options.clock.now


async def test_a_certificate_is_not_shown_while_the_api_server_could_not_be_told_whom_to_trust() -> None:
    options = await ClusterOptions().furnish()
    update = options.client.update

    async def changed_by_others(resource: Any, body: Any) -> Any:
        if resource is MUTATING_WEBHOOKS:
            raise Conflict(409, "Conflict", "changed")
        return await update(resource, body)

    options.client.update = changed_by_others  # type: ignore[method-assign,assignment] # whenever it is written

    with pytest.raises(Conflict):
        await options.replica().keep()


async def test_another_name_needs_another_certificate() -> None:
    options = await ClusterOptions().furnish()
    first = await options.replica().keep()
    renamed = Names(NAMES.namespace, NAMES.secret, NAMES.configuration, ("elsewhere",))

    assert await options.replica(renamed).keep() != first


async def test_two_replicas_that_begin_at_once_agree() -> None:
    options = await ClusterOptions().furnish()
    one, other = options.replica(), options.replica()
    raced = False

    async def racing(*arguments: Any, **more: Any) -> Any:
        nonlocal raced
        if not raced:
            raced = True
            await other.keep()
        return await create(*arguments, **more)

    create = options.client.create
    options.client.create = racing  # type: ignore[method-assign] # between the first one's look and its write

    assert await one.keep() == await other.keep()


async def test_an_admin_who_applies_the_manifests_again_is_corrected() -> None:
    options = await ClusterOptions().furnish()
    shown = await options.replica().keep()
    for each in webhooks(for_embedded_api=True):
        version = (await options.client.get(MUTATING_WEBHOOKS, "carrel"))["metadata"]["resourceVersion"]
        again = {**each, "metadata": {"name": "carrel", "resourceVersion": version}}
        await options.client.update(MUTATING_WEBHOOKS, again)

    assert await options.replica().keep() == shown and await options.is_trusted(shown)


async def test_without_configurations_the_certificates_are_kept_all_the_same() -> None:
    options = ClusterOptions()
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "carrel"}}
    await options.client.create(NAMESPACES, body)

    assert await options.replica().keep() == await options.replica().keep()


async def test_what_is_shown_changes_only_to_a_certificate_with_its_own_key() -> None:
    valid = Validity(START, START + DAY)
    one, other = (NOTARY.issue(NOTARY.authority(valid), ["a"], valid) for _ in range(2))
    shown = Shown()

    assert shown.show(one) and not shown.show(one)
    with pytest.raises(Unreadable):
        shown.show(Pair(other.certificate, one.key))
    assert shown.pair == one and shown.expires_at == (START + DAY).timestamp()
    assert shown.context.minimum_version == ssl.TLSVersion.TLSv1_2
