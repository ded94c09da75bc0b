"""A small OpenID Connect provider with real RSA keys. Tests choose the person, and can make it send wrong claims."""

import base64
import functools
import hashlib
import json
import secrets
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus, urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "carrel", "the client's secret"


@functools.cache
def _first_key() -> rsa.RSAPrivateKey:
    """Creating a key is slow; most tests need only this one."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class OidcProvider:
    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.url = ""
        self.person: dict[str, Any] = {"sub": "1", "email": "Ada@Lab.example", "email_verified": True, "name": "Ada"}
        self.wrong_claims: dict[str, Any] = {}
        """They replace the right claims; None removes a claim."""
        self.sign: Callable[[dict[str, Any]], str] = self.signed
        self.key_reads = 0
        self.codes_work_once = True
        self._codes: dict[str, dict[str, str]] = {}
        self.key, self.key_id = _first_key(), "first"
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discovery),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._keys),
            ]
        )

    def rotate(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.key_id = secrets.token_hex(4)

    def signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self.key, "RS256", headers={"kid": self.key_id})

    async def _discovery(self, request: Request) -> Response:
        ends = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        return JSONResponse({"issuer": self.url, **{name: f"{self.url}/{path}" for name, path in ends.items()}})

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
        code = secrets.token_hex(8)
        self._codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}", 302)

    async def _token(self, request: Request) -> Response:
        form = await request.form()
        basic = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
        asked = self._codes.get(str(form["code"]))
        if self.codes_work_once:
            self._codes.pop(str(form["code"]), None)
        proof = base64.urlsafe_b64encode(hashlib.sha256(str(form["code_verifier"]).encode()).digest()).rstrip(b"=")
        if unquote_plus(basic) != f"{CLIENT}:{SECRET}" or asked is None or asked["code_challenge"] != proof.decode():
            return JSONResponse({"error": "invalid_grant"}, 400)
        if asked["redirect_uri"] != form["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(self.now().timestamp())
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"], **self.person}
        sent = {name: value for name, value in {**claims, **self.wrong_claims}.items() if value is not None}
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": self.sign(sent)})

    async def _keys(self, request: Request) -> Response:
        self.key_reads += 1
        public = json.loads(RSAAlgorithm.to_jwk(self.key.public_key()))
        unknown = [{"kty": "OKP", "crv": "unknown", "kid": str(each), "x5c": "c" * 1000} for each in range(300)]
        return JSONResponse({"keys": [*unknown, {**public, "kid": self.key_id, "use": "sig", "alg": "RS256"}]})
