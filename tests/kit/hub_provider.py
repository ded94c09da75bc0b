"""A small stand-in for JupyterHub as an OAuth 2 provider. It behaves as JupyterHub 6.1 was seen to: secrets only in the
form, exact redirect addresses, its own scopes only, codes that work once, tokens of 32 hexadecimal digits."""

import base64
import hashlib
import secrets
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "service-carrel", "the api_token of the service"
ACCESS = "access:services!service=carrel"


class HubProvider:
    def __init__(self) -> None:
        self.url = ""
        self.user: dict[str, Any] = {"name": "ada", "groups": ["vision"]}
        """Who signs in with the browser."""
        self.redirect_uri = ""
        """As it is registered."""
        self.refusal = ""
        """The error that the browser brings back instead of a code."""
        self.is_up = True
        self.body: bytes | None = None
        """Sent instead of every answer to the service."""
        self.asked: list[str] = []
        """The tokens about which it was asked."""
        self._codes: dict[str, dict[str, str]] = {}
        self._owners: dict[str, dict[str, Any]] = {}
        self.app = Starlette(
            routes=[
                Route("/hub/api/oauth2/authorize", self._authorize),
                Route("/hub/api/oauth2/token", self._token, methods=["POST"]),
                Route("/hub/api/user", self._user),
            ]
        )

    def token(self, name: str = "ada", scopes: tuple[str, ...] = (ACCESS,), **more: Any) -> str:
        """Of a user, as in the environment of their notebook."""
        token = secrets.token_hex(16)
        self._owners[token] = {"kind": "user", "name": name, "admin": False, "scopes": sorted(scopes), **more}
        return token

    def revoke(self, token: str) -> None:
        del self._owners[token]

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        if asked["client_id"] != CLIENT or asked["redirect_uri"] != self.redirect_uri:
            return Response("the client or its redirect_uri is unknown", 400)
        error = "invalid_scope" if "scope" in asked else self.refusal
        code = secrets.token_hex(15)
        self._codes[code] = asked
        answer = {"error": error} if error else {"code": code}
        return RedirectResponse(f"{self.redirect_uri}?{urlencode({**answer, 'state': asked['state']})}", 302)

    async def _token(self, request: Request) -> Response:
        if (broken := self._broken()) is not None:
            return broken
        form = await request.form()
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT, SECRET):
            return JSONResponse({"error": "invalid_client"}, 401)
        asked = self._codes.pop(str(form["code"]), None)
        proof = base64.urlsafe_b64encode(hashlib.sha256(str(form["code_verifier"]).encode()).digest()).rstrip(b"=")
        if asked is None or asked["code_challenge"] != proof.decode() or form["redirect_uri"] != self.redirect_uri:
            return JSONResponse({"error": "invalid_grant"}, 400)
        token = self.token(**self.user)
        return JSONResponse({"access_token": token, "expires_in": 1209600, "token_type": "Bearer", "scope": ACCESS})

    async def _user(self, request: Request) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.asked.append(token)
        if (broken := self._broken()) is not None:
            return broken
        owner = self._owners.get(token)
        return JSONResponse(owner) if owner else JSONResponse({"status": 403, "message": None}, 403)

    def _broken(self) -> Response | None:
        if not self.is_up:
            return Response("the hub is away", 503)
        return Response(self.body, media_type="application/json") if self.body is not None else None
