"""Calls one admission webhook over HTTP(S) and checks the form of its answer. It decides nothing itself."""

import asyncio
import base64
import binascii
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import aiohttp
import msgspec

from kubernetes_in_memory.store import encode

Json = dict[str, Any]

ServiceAddress = Callable[[str, str, int], str]
"""Where a Service is reached: (namespace, name, port) → `https://127.0.0.1:8443`. There is no cluster network here."""
LARGEST_ANSWER = 7 * 1024 * 1024


class CallFailed(Exception):
    """No usable answer: the webhook's failurePolicy decides what that means."""


class WebhookClient:
    def __init__(self, service_address: ServiceAddress | None = None) -> None:
        self._service_address = service_address
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, webhook: Json, review: Json) -> Json:
        """The `response` of the answered AdmissionReview."""
        address, host = self._address(webhook["clientConfig"])
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=False)
        try:
            async with self._session.post(
                address,
                params={"timeout": f"{webhook['timeoutSeconds']}s"},
                data=encode(review),
                headers={"content-type": "application/json", "accept": "application/json"},
                timeout=aiohttp.ClientTimeout(total=webhook["timeoutSeconds"]),
                ssl=_trust(webhook["clientConfig"]),
                server_hostname=host or None,
                allow_redirects=False,
            ) as answer:
                body = await answer.content.read(LARGEST_ANSWER)
                if answer.status != 200:
                    raise CallFailed(f"the server answered {answer.status} {answer.reason}")
        except TimeoutError as error:
            raise CallFailed(f'Post "{address}": no answer within {webhook["timeoutSeconds"]} s') from error
        except (aiohttp.ClientError, OSError) as error:
            raise CallFailed(f'Post "{address}": {error}') from error
        return _response(body, review["request"]["uid"])

    def _address(self, client_config: Json) -> tuple[str, str]:
        """The URL, and the name that the certificate must have where it is not the URL's own."""
        if url := client_config.get("url"):
            return url, ""
        service = client_config["service"]
        namespace, name = service["namespace"], service["name"]
        if self._service_address is None:
            raise CallFailed(f"service {namespace}/{name} cannot be reached: this API server has no cluster network")
        base = self._service_address(namespace, name, service.get("port", 443))
        host = f"{name}.{namespace}.svc" if base.startswith("https:") else ""
        return f"{base.rstrip('/')}/{service.get('path', '').lstrip('/')}", host

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            # aiohttp closes sockets a moment after `close()` returns.
            await asyncio.sleep(0)
            self._session = None


def _trust(client_config: Json) -> ssl.SSLContext | bool:
    bundle = client_config.get("caBundle")
    return _trusting(bundle) if bundle else True


@lru_cache(maxsize=16)
def _trusting(bundle: str) -> ssl.SSLContext:
    """The same context for the same bundle: otherwise aiohttp would not reuse a connection."""
    try:
        return ssl.create_default_context(cadata=base64.b64decode(bundle).decode("ascii"))
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError) as error:
        raise CallFailed(f"unable to load root certificates from caBundle: {error}") from error


def _response(body: bytes, uid: str) -> Json:
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise CallFailed(f"couldn't read the answer: {error}") from error
    if not isinstance(answer, dict) or answer.get("kind") != "AdmissionReview":
        raise CallFailed("expected an AdmissionReview as the answer")
    if answer.get("apiVersion") != "admission.k8s.io/v1":
        raise CallFailed(f"expected apiVersion admission.k8s.io/v1 in the answer, got {answer.get('apiVersion')!r}")
    response = answer.get("response")
    if not isinstance(response, dict):
        raise CallFailed("the answer has no response")
    if response.get("uid") != uid:
        raise CallFailed(f"expected response.uid={uid!r}, got {response.get('uid')!r}")
    return response
