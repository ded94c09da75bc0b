"""Sign-in with an OpenID Connect provider: authorization code flow with PKCE, and strict checks of the ID token.

A claim is used only after signature, issuer, audience, nonce and times are checked. Keys are fetched when a token names
an unknown key, at most once a minute: providers rotate keys, and forged tokens name invented ones.

Why this is our own code on top of PyJWT, not an OAuth library: decisions/0025.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote_plus, urlencode

import aiohttp
import jwt

from carrel.bookings.sign_in.secrets import is_same
from carrel.configuration.schema import Bookings
from carrel.parsing.addresses import is_address, normal

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric ones only: with HS256 the client secret, or a public key mistaken for a secret, could sign."""
LEEWAY = timedelta(seconds=60)
KEYS_AT_MOST_EVERY = timedelta(minutes=1)
DISCOVERY_AGE = timedelta(hours=1)
MAX_ANSWER = 1 << 20
MAX_NAME = 255
TIMEOUT = aiohttp.ClientTimeout(total=15)


class SignInFailed(Exception):
    """The provider did not prove who the person is. The message is for that person."""


class ProviderUnavailable(SignInFailed):
    """The provider does not answer, so nobody can sign in there now."""


@dataclass(frozen=True, slots=True)
class VerifiedClaims:
    """What the provider says about a person, after all checks."""

    email: str
    name: str
    groups: tuple[str, ...] | None
    """None: the provider does not tell them."""


def code_challenge(verifier: str) -> str:
    """RFC 7636, S256."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def code_form(code: str, verifier: str, client_id: str, redirect_uri: str) -> dict[str, str]:
    """Return what is sent for a token: RFC 6749, 4.1.3, with the proof of RFC 7636."""
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
    return {**form, "code_verifier": verifier, "client_id": client_id}


class OidcClient:
    def __init__(
        self, bookings: Bookings, secret: str, http: aiohttp.ClientSession, now: Callable[[], datetime]
    ) -> None:
        self._provider = bookings.sign_in.oidc
        self._issuer, self._client_id, self._client_secret = self._provider.issuer, self._provider.client_id, secret
        self._redirect_uri = f"{bookings.link}/sign-in/callback"
        self._http = http
        self._now = now
        self._lock = asyncio.Lock()
        self._discovered: tuple[datetime, Mapping[str, Any]] | None = None
        self._keys: dict[str, jwt.PyJWK] = {}
        self._keys_at: datetime | None = None

    async def url(self, state: str, nonce: str, verifier: str) -> str:
        """The address at the provider to which the browser is redirected. Raises `SignInFailed`."""
        parameters = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(self._provider.scopes.split()),
            "state": state,
            "nonce": nonce,
            "code_challenge": code_challenge(verifier),
            "code_challenge_method": "S256",
        }
        endpoint = str((await self._discovery())["authorization_endpoint"])
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"

    async def finish(self, code: str, verifier: str, nonce: str) -> VerifiedClaims:
        """Raises `SignInFailed`."""
        answer = await self._exchange(code, verifier)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise SignInFailed("The identity provider sent no ID token")
        claims = await self._checked(token)
        if not is_same(str(claims.get("nonce", "")), nonce):
            raise SignInFailed("The ID token belongs to another sign-in")
        return self._verified(claims)

    def _verified(self, claims: Mapping[str, Any]) -> VerifiedClaims:
        email, groups = claims.get(self._provider.email_claim), claims.get(self._provider.groups_claim, [])
        if not isinstance(email, str) or not is_address(email):
            raise SignInFailed(
                f"The identity provider sent no e-mail address in the claim {self._provider.email_claim!r}"
            )
        is_verified = claims.get("email_verified", True)
        if is_verified is not True and is_verified != "true":
            raise SignInFailed(f"The identity provider has not verified the address {email}")
        named = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
        name = claims.get("name")
        shown = name[:MAX_NAME] if isinstance(name, str) and name.isprintable() else ""
        return VerifiedClaims(normal(email), shown, tuple(str(each) for each in named))

    async def _exchange(self, code: str, verifier: str) -> Mapping[str, Any]:
        discovered = await self._discovery()
        form = code_form(code, verifier, self._client_id, self._redirect_uri)
        headers = {}
        methods = discovered.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if self._client_secret and "client_secret_basic" in methods:
            headers["authorization"] = _basic(self._client_id, self._client_secret)
        elif self._client_secret:
            form["client_secret"] = self._client_secret
        return await self._json("POST", str(discovered["token_endpoint"]), data=form, headers=headers)

    async def _checked(self, token: str) -> Mapping[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(str(header.get("kid", "")))
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self._client_id,
                issuer=self._issuer,
                # The times are checked below, with the injected clock.
                options={
                    "require": ["exp", "iat", "iss", "aud", "sub"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except jwt.PyJWTError as error:
            raise SignInFailed(f"The ID token cannot be trusted: {error}") from None
        self._check_times(claims)
        audience = claims["aud"]
        party = claims.get("azp", self._client_id if isinstance(audience, str) or len(audience) == 1 else "")
        if party != self._client_id:
            raise SignInFailed("The ID token was made for another client")
        return claims

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        now, leeway = self._now().timestamp(), LEEWAY.total_seconds()
        exp, iat, nbf = claims["exp"], claims["iat"], claims.get("nbf", 0)
        if not all(isinstance(each, int | float) for each in (exp, iat, nbf)):
            raise SignInFailed("The ID token cannot be trusted: its times are not numbers")
        if exp + leeway <= now:
            raise SignInFailed("The ID token has expired")
        if max(iat, nbf) - leeway > now:
            raise SignInFailed("The ID token is not valid yet: compare the clocks of the provider and of this server")

    async def _key(self, kid: str) -> jwt.PyJWK:
        async with self._lock:
            is_due = self._keys_at is None or self._now() - self._keys_at >= KEYS_AT_MOST_EVERY
            if kid not in self._keys and is_due:
                found = await self._json("GET", str((await self._discovery())["jwks_uri"]))
                self._keys = _keys_of(found)
                self._keys_at = self._now()
            if kid in self._keys:
                return self._keys[kid]
            if not kid and len(self._keys) == 1:
                return next(iter(self._keys.values()))
        raise SignInFailed(f"The ID token is signed with a key {kid!r} that the identity provider does not publish")

    async def _discovery(self) -> Mapping[str, Any]:
        if self._discovered and self._now() - self._discovered[0] < DISCOVERY_AGE:
            return self._discovered[1]
        found = await self._json("GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self._issuer:
            raise SignInFailed(f"{self._issuer} calls itself {found.get('issuer')!r}")
        missing = [
            name
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")
            if not isinstance(found.get(name), str)
        ]
        if missing:
            raise SignInFailed(f"{self._issuer} does not publish its {', '.join(missing)}")
        self._discovered = (self._now(), found)
        return found

    async def _json(self, method: str, url: str, **form: Any) -> Mapping[str, Any]:
        status, found = await ask_provider(self._http, "the identity provider", method, url, **form)
        if not isinstance(found, dict):
            raise SignInFailed(f"The identity provider answered {status}")
        return found


async def ask_provider(
    http: aiohttp.ClientSession, provider: str, method: str, url: str, **call: Any
) -> tuple[int, object]:
    """Return the status, and the JSON of the answer if it is 200. What was sent is in no message.

    An answer that is larger than any provider's is cut off; it is no valid JSON then.
    """
    try:
        async with http.request(method, url, timeout=TIMEOUT, allow_redirects=False, **call) as answer:
            body = b""
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > MAX_ANSWER:
                    break
            return answer.status, json.loads(body) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
        raise ProviderUnavailable(f"No answer from {provider}: {type(error).__name__}") from None


def _basic(name: str, secret: str) -> str:
    """RFC 6749, 2.3.1: both are form-encoded first."""
    return "Basic " + base64.b64encode(f"{quote_plus(name)}:{quote_plus(secret)}".encode()).decode()


def _keys_of(found: Mapping[str, Any]) -> dict[str, jwt.PyJWK]:
    """The signing keys. Keys of an unknown kind are ignored."""
    keys: dict[str, jwt.PyJWK] = {}
    for each in found.get("keys", ()):
        try:
            if each.get("use", "sig") == "sig":
                keys[str(each.get("kid", ""))] = jwt.PyJWK(each)
        except (jwt.PyJWTError, AttributeError):
            continue
    return keys
