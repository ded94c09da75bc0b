"""A real admission webhook over HTTP(S), which answers as a test says and remembers what it was asked."""

import base64
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from kubernetes_in_memory.certificates import Certificate

Json = dict[str, Any]
Decide = Callable[[Json], Json]


def allow(request: Json) -> Json:
    return {"allowed": True}


def patch(*operations: Json) -> Decide:
    encoded = base64.b64encode(msgspec.json.encode(operations)).decode()
    return lambda request: {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


@dataclass
class Webhook:
    url: str
    certificate: Certificate
    asked: list[Json] = field(default_factory=list)
    decide: Decide = allow

    def configuration(self, kind: str = "Mutating", name: str = "desk", **changes: Any) -> Json:
        webhook = {
            "name": f"{name}.library.example",
            "clientConfig": {"url": self.url, "caBundle": base64.b64encode(self.certificate.pem).decode()},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            **changes,
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }


@asynccontextmanager
async def webhook_server(*certified: str) -> AsyncIterator[Webhook]:
    certificate = Certificate.make(certified or ("127.0.0.1",))
    webhook = Webhook("", certificate)

    async def answer(request: web.Request) -> web.Response:
        review = msgspec.json.decode(await request.read())
        webhook.asked.append(review["request"])
        response = webhook.decide(review["request"])
        if "broken" in response:
            return web.Response(status=200, text=response["broken"])
        body = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], **response},
        }
        return web.json_response(body)

    app = web.Application()
    app.router.add_post("/{anything:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    with tempfile.TemporaryDirectory() as folder:
        files = certificate.write(Path(folder))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*files)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        host, port = runner.addresses[0][:2]
        webhook.url = f"https://{host}:{port}/mutate"
        try:
            yield webhook
        finally:
            await runner.cleanup()
