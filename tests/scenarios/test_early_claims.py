"""Claims that a pod names and that the watch has not shown yet: read from the API server, believed until it does."""

import msgspec

from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.reflector import Informers
from carrel.resource_claims.device_claims import DeviceClaims
from carrel.resource_claims.objects import RESOURCE_CLAIMS
from tests.kit.dra import new_claim
from tests.kit.lab import Lab, a_lab


async def a_pod_with_a_claim(lab: Lab) -> Pod:
    await new_claim(lab, "train", deviceClassName="gpu.carrel.dev")
    claims = [{"name": "gpu", "resourceClaimName": "train"}]
    return msgspec.convert(await lab.pod("user", claims=claims), Pod)


async def test_a_claim_that_was_read_early_and_is_gone_asks_for_nothing() -> None:
    async with a_lab([]) as lab:
        pod, claims = await a_pod_with_a_claim(lab), DeviceClaims(Informers(lab.client))
        assert claims.request_of(pod) is None, "no watch has shown it"
        await claims.look_up(pod, lab.client)
        assert claims.request_of(pod) is not None

        await lab.client.delete(RESOURCE_CLAIMS, "train", "lab")
        await claims.look_up(pod, lab.client)
        assert claims.request_of(pod) is None


async def test_what_the_watch_has_shown_replaces_what_was_read_early() -> None:
    async with a_lab([]) as lab:
        pod, claims = await a_pod_with_a_claim(lab), DeviceClaims(Informers(lab.client))
        await claims.look_up(pod, lab.client)
        await claims.claims.read_once()
        await lab.client.delete(RESOURCE_CLAIMS, "train", "lab")
        await claims.claims.read_once()
        assert claims.request_of(pod) is None
