"""A real API server says whose token it is: only tokens made for the booking service count there."""

import json
from typing import Any

from carrel.adapters.identity import Kubernetes, RoleBook, Vouching
from carrel.adapters.kube import Client, HttpTransport, access_to
from carrel.adapters.wire import ApiRequest
from testbed.control_plane import ApiServer

WEBHOOK = "system:serviceaccount:default:carrel-webhook-of-a-test"


async def test_a_token_counts_for_the_audience_it_was_made_for(server: ApiServer) -> None:
    transport = HttpTransport(access_to(server.token_kubeconfig, {}))
    client = Client(transport)

    async def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        answer = await transport.send(ApiRequest("POST", path, headers=headers, body=json.dumps(body).encode()))
        made: dict[str, Any] = json.loads(answer.body)
        return made

    async def token(*audiences: str) -> str:
        spec = {"audiences": list(audiences), "expirationSeconds": 600}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str((await post(f"{accounts}/carrel-webhook-of-a-test/token", request))["status"]["token"])

    accounts = "/api/v1/namespaces/default/serviceaccounts"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "carrel-webhook-of-a-test"}}
    await post(accounts, account)
    roles = RoleBook(services=frozenset({WEBHOOK}))
    ours = Kubernetes(client, roles, lambda: 0.0, Vouching("carrel-booking"))
    anybodys = Kubernetes(client, roles, lambda: 0.0)
    try:
        person = await ours.person(await token("carrel-booking"))
        assert person is not None
        assert (person.email, person.is_service) == (WEBHOOK, True)
        assert await ours.person(await token("another-service")) is None
        assert await ours.person(await token()) is None, "one for the API server itself"
        assert await anybodys.person(await token()) is not None
        assert await anybodys.person(await token("another-service")) is None
        assert await ours.person("made-up") is None
    finally:
        await transport.send(ApiRequest("DELETE", f"{accounts}/carrel-webhook-of-a-test"))
        await client.aclose()
