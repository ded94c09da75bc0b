"""The same API on a socket: HTTP and HTTPS, watches that end, bodies that are too large."""

import asyncio
import ssl

import aiohttp
import msgspec

from kubernetes_in_memory.http_server import LARGEST_BODY, serve
from packages.kubernetes_in_memory.tests.integration.caller import LIMIT_S, PODS, Caller, api_of, pod, wait_until
from tests.kit.raw_http import answers_without_delay


async def test_a_call_over_a_socket_is_the_same_call(call: Caller) -> None:
    async with serve(api_of(call)) as served, aiohttp.ClientSession(served.url) as http:
        async with http.post(PODS, json=pod()) as answer:
            assert answer.status == 201
        async with http.get(PODS, params={"labelSelector": "a!=b"}) as answer:
            over_http = await answer.read()
        listed = await call("GET", PODS, labelSelector="a!=b")
        assert msgspec.json.decode(over_http) == listed.body


async def test_a_client_that_has_the_certificate_trusts_it(call: Caller) -> None:
    async with serve(api_of(call), tls=True) as served:
        assert served.certificate is not None
        context = ssl.create_default_context(cadata=served.certificate.pem.decode())
        async with aiohttp.ClientSession(served.url) as http, http.get("/version", ssl=context) as answer:
            assert answer.status == 200


async def test_a_watch_over_a_socket_is_open_at_once_and_ends_with_the_server(call: Caller) -> None:
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as http:
        async with serve(api_of(call)) as served:
            # The headers come before anything happens, or a client could not know that it misses nothing from here on.
            answer = await http.get(f"{served.url}{PODS}", params={"watch": "1"})
            await call.made(PODS, pod())
            event = msgspec.json.decode(await answer.content.readline())
            assert event["type"] == "ADDED"
        assert await answer.content.read() == b""
        answer.close()
    async with call.watching(PODS) as events:
        assert (await events.next())["type"] == "ADDED", "the API lives on"


async def test_a_client_that_disconnects_ends_its_watch(call: Caller) -> None:
    listeners = api_of(call).store.collection(("", "pods")).listeners
    async with asyncio.timeout(LIMIT_S), serve(api_of(call)) as served, aiohttp.ClientSession() as http:
        answer = await http.get(f"{served.url}{PODS}", params={"watch": "1"})
        await wait_until(lambda: listeners)
        answer.close()
        await wait_until(lambda: not listeners)


async def test_a_body_that_is_too_large_is_refused(call: Caller) -> None:
    async with serve(api_of(call)) as served, aiohttp.ClientSession(served.url) as http:
        async with http.post(PODS, data=b" " * (LARGEST_BODY + 1)) as answer:
            assert answer.status == 413
            assert (await answer.json())["reason"] == "RequestEntityTooLarge"
        async with http.get(PODS) as answer:
            assert answer.status == 200


async def test_no_answer_waits_for_an_acknowledgement(call: Caller) -> None:
    async with serve(api_of(call)) as served:
        assert await answers_without_delay(served.url)
