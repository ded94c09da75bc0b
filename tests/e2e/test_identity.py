"""A real API server says whose token it is: only tokens made for the booking service count, and end with their pod."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from carrel.bookings.people import RoleOptions
from carrel.bookings.sign_in.token_review import TokenReviewer
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import DeleteOptions, Json
from carrel.kubernetes.config import access_to
from carrel.kubernetes.http_transport import HttpTransport
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import PODS, SERVICE_ACCOUNTS, Resource
from testbed.control_plane import ApiServer
from tests.contracts.backends import eventually

ACCOUNT = "hub-of-a-test"
HUB = f"system:serviceaccount:default:{ACCOUNT}"
TOKENS = Resource(Object, "", "v1", f"serviceaccounts/{ACCOUNT}/token", "TokenRequest")
ROLES = RoleOptions(hubs=frozenset({HUB}))


class TokenReviews:
    """The booking service's own eye on tokens, without its memory: it asks the API server each time."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def token(self, *audiences: str, pod: Json | None = None) -> str:
        spec: Json = {"audiences": list(audiences), "expirationSeconds": 600}
        if pod is not None:
            named = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **named}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        status = (await self.client.create(TOKENS, request, "default"))["status"]
        left = datetime.fromisoformat(status["expirationTimestamp"]) - datetime.now(UTC)
        assert left <= timedelta(seconds=600), "nobody gets a token that lasts"
        return str(status["token"])

    async def knows(self, token: str, audience: str = "carrel-booking") -> bool:
        person = await TokenReviewer(self.client, ROLES, lambda: 0.0, audience).person(token)
        assert person is None or (person.email, person.is_hub) == (HUB, True)
        return person is not None


@pytest.fixture
async def reviews(server: ApiServer) -> AsyncIterator[TokenReviews]:
    client = Client(HttpTransport(access_to(server.token_kubeconfig, {})))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    await client.create(SERVICE_ACCOUNTS, account, "default")
    yield TokenReviews(client)
    await client.delete(SERVICE_ACCOUNTS, ACCOUNT, "default")
    await client.aclose()


@pytest.fixture
async def pod(reviews: TokenReviews) -> Json:
    spec = {"serviceAccountName": ACCOUNT, "containers": [{"name": "main", "image": "work"}]}
    manifest: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "webhook-"}, "spec": spec}
    return await reviews.client.create(PODS, manifest, "default")


async def test_a_token_counts_for_the_audience_it_was_made_for(reviews: TokenReviews, pod: Json) -> None:
    assert await reviews.knows(await reviews.token("carrel-booking", pod=pod))
    assert not await reviews.knows(await reviews.token("another-service", pod=pod))
    assert not await reviews.knows(await reviews.token(pod=pod)), "one for the API server itself"
    assert await reviews.knows(await reviews.token(pod=pod), audience="")
    assert not await reviews.knows(await reviews.token("another-service", pod=pod), audience="")
    assert not await reviews.knows("made-up")


async def test_a_token_ends_with_the_pod_it_was_given_to(reviews: TokenReviews, pod: Json) -> None:
    token = await reviews.token("carrel-booking", pod=pod)
    assert await reviews.knows(token)

    await reviews.client.delete(PODS, pod["metadata"]["name"], "default", how=DeleteOptions(grace_seconds=0))

    async def is_refused() -> bool:
        return not await reviews.knows(token)

    # The API server remembers for some seconds what it found out about a token.
    assert await eventually(is_refused)


async def test_a_token_that_is_bound_to_no_pod_is_refused(reviews: TokenReviews) -> None:
    assert not await reviews.knows(await reviews.token("carrel-booking"))
