"""The routes for tokens and roles: who am I, my tokens, the login of the command line, roles of people.

Only a person with a browser session creates tokens: a token cannot create another, so a leaked one is useless after it
is revoked. The command line exchanges a code that the browser brought, plus a proof that only it has (PKCE), for a
token. So neither the browser history nor another program on the machine can get the token.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from carrel.bookings.people import Grant, How, PendingLogin, Person, Role, Scope, Token
from carrel.bookings.sign_in import sign_in_pages
from carrel.bookings.sign_in.authenticator import Authenticator, CurrentPerson, forbidden
from carrel.bookings.sign_in.oidc import code_challenge
from carrel.bookings.sign_in.secrets import hashed, is_same, new_secret, new_token
from carrel.http.problems import Problem
from carrel.parsing.addresses import is_address, normal

CODE_LIFETIME = timedelta(minutes=2)
BROWSER_SESSIONS = (How.SESSION, How.DEV)
DEFAULT_DAYS = 30
LONGEST_LIFETIME = timedelta(days=90)
"""Of a token: a forgotten one is of no use after a quarter of a year."""
PLAIN = r"^[^\x00-\x1f\x7f]*$"
"""No control characters: not every database can store them."""


class NewToken(BaseModel):
    label: str = Field(min_length=1, max_length=100, pattern=PLAIN, examples=["my notebook"])
    scopes: list[Scope] = Field(default=[Scope.READ, Scope.BOOK], min_length=1, max_length=len(Scope))
    days: int = Field(default=DEFAULT_DAYS, ge=1, le=3650, description="Limited to what the service allows.")


class CliLoginRequest(BaseModel):
    """What `carrel login` asks for through the browser."""

    port: int | None = Field(
        default=None,
        ge=1024,
        le=65535,
        description="Where it listens on this machine; null: the code is typed.",
    )
    state: str = Field(min_length=16, max_length=200, pattern=PLAIN)
    challenge: str = Field(min_length=43, max_length=128, pattern=PLAIN)
    label: str = Field(min_length=1, max_length=100, pattern=PLAIN)
    scopes: str = Field(pattern="^(read|book|admin)( (read|book|admin)){0,2}$")


class CodeExchange(BaseModel):
    code: str = Field(max_length=200)
    verifier: str = Field(min_length=43, max_length=128)


class RoleChange(BaseModel):
    role: Role | None = Field(description="Null removes the role.")
    reason: str = Field(min_length=1, max_length=500, pattern=PLAIN)


@dataclass(frozen=True, slots=True)
class CredentialRoutes:
    authenticator: Authenticator

    async def me(self, request: Request, person: CurrentPerson) -> dict[str, Any]:
        """Who you are, and what you may do."""
        return {
            "email": person.email,
            "name": person.name,
            "roles": sorted(role.value for role in person.roles),
            "scopes": sorted(scope.value for scope in person.scopes),
            "how": person.how.value,
            "sign_in_groups": sorted(await self.authenticator.people.seen_groups(person.email)),
        }

    async def tokens(self, person: CurrentPerson) -> dict[str, Any]:
        """Your tokens, without their secrets."""
        return {"tokens": [_shown(token) for token in await self.authenticator.people.tokens_of(person.email)]}

    async def make_token(
        self, request: Request, wanted: NewToken, person: CurrentPerson, response: Response
    ) -> dict[str, Any]:
        """Creates a token. Only this answer contains its secret."""
        _check_browser_session(person)
        response.headers["cache-control"] = "no-store"
        return await self._create_token(replace(person, roles=await self._session_roles(request)), wanted)

    async def revoke(self, token_id: str, person: CurrentPerson) -> Response:
        """Revokes a token. A token may revoke itself and other tokens of its person."""
        is_id = token_id.isascii() and token_id.isprintable()
        if not is_id or not await self.authenticator.people.revoke_token(
            person.email, token_id, self.authenticator.now()
        ):
            why = "You have no token with this id."
            raise Problem(404, "not-found", "No such token", why, "list them at /api/v1/tokens")
        return Response(status_code=204)

    async def ask_to_allow(
        self, request: Request, person: CurrentPerson, wanted: Annotated[CliLoginRequest, Query()]
    ) -> Response:
        """Asks the person whether the command line on their machine may get a token."""
        asked = {name: str(value) for name, value in wanted.model_dump(exclude_none=True).items()}
        csrf = self.authenticator.csrf_token(request)
        callback = f"http://127.0.0.1:{wanted.port}" if wanted.port else ""
        return sign_in_pages.allow_command_line(self.authenticator.options, person.email, csrf, asked, callback)

    async def allow(
        self, request: Request, person: CurrentPerson, wanted: Annotated[CliLoginRequest, Form()]
    ) -> Response:
        """The person agreed: the command line gets a code that it can exchange, where it listens or from the person."""
        _check_browser_session(person)
        code = new_secret()
        facts = {
            "challenge": wanted.challenge,
            "label": wanted.label,
            "scopes": wanted.scopes,
            "email": person.email,
            "roles": " ".join(role.value for role in await self._session_roles(request)),
            "how": person.how.value,
        }
        await self.authenticator.people.begin_login(
            hashed(code), PendingLogin(facts, self.authenticator.now() + CODE_LIFETIME)
        )
        if wanted.port is None:
            return sign_in_pages.code_to_type(self.authenticator.options, code, CODE_LIFETIME)
        answer = urlencode({"code": code, "state": wanted.state})
        return RedirectResponse(f"http://127.0.0.1:{wanted.port}/?{answer}", 303)

    async def exchange(self, given: CodeExchange, response: Response) -> dict[str, Any]:
        """Exchanges the code from the browser and the PKCE proof for a token."""
        made = list[dict[str, Any]]()

        def token_for(login: PendingLogin) -> tuple[str, Token] | None:
            if not is_same(code_challenge(given.verifier), login.facts["challenge"]):
                return None
            scopes = [Scope(each) for each in login.facts["scopes"].split()]
            roles = frozenset(Role(each) for each in login.facts["roles"].split())
            person = Person(login.facts["email"], roles=roles, how=How(login.facts["how"]))
            secret, token = self._new_token(person, NewToken(label=login.facts["label"], scopes=scopes))
            made.append({**_shown(token), "token": secret})
            return hashed(secret), token

        await self.authenticator.people.take_login(hashed(given.code), self.authenticator.now(), token_for)
        if not made:
            why = "The code is unknown, used, expired, or belongs to another program."
            raise Problem(403, "bad-code", "No token for this code", why, "carrel login")
        response.headers["cache-control"] = "no-store"
        return made[0]

    async def _session_roles(self, request: Request) -> frozenset[Role]:
        """The roles of the session itself. Roles from settings and grants are not stored in a token: they are looked up
        at each request, so that they end when they are removed."""
        secret = hashed(self.authenticator.session_secret(request))
        session = await self.authenticator.people.session(secret, self.authenticator.now())
        return session.roles if session else frozenset()

    async def _create_token(self, person: Person, wanted: NewToken) -> dict[str, Any]:
        secret, token = self._new_token(person, wanted)
        await self.authenticator.people.add_token(hashed(secret), token)
        return {**_shown(token), "token": secret}

    def _new_token(self, person: Person, wanted: NewToken) -> tuple[str, Token]:
        secret, now = new_token(), self.authenticator.now()
        expires = now + min(timedelta(days=wanted.days), LONGEST_LIFETIME)
        token = Token(
            id=new_secret()[:16],
            email=person.email,
            label=wanted.label,
            scopes=frozenset(wanted.scopes),
            created=now,
            expires=expires,
            roles=person.roles,
            how=person.how,
        )
        return secret, token

    async def known_people(self, person: CurrentPerson) -> dict[str, Any]:
        """All people who have signed in, and their roles."""
        if not person.is_lab_admin:
            raise forbidden("You may not list people", "This needs the role lab-admin.")
        return {
            "people": [
                {
                    "email": each.email,
                    "name": each.name,
                    "granted": each.granted.value if each.granted else None,
                    "roles": sorted(role.value for role in self.authenticator.roles.by_email(each.email, each.granted)),
                    "last_seen": each.last_seen.isoformat() if each.last_seen else None,
                }
                for each in await self.authenticator.people.known()
            ]
        }

    async def give_role(self, email: str, given: RoleChange, person: CurrentPerson) -> Response:
        """Grants or removes a role, in addition to the settings and the groups of the provider."""
        if not person.is_platform_admin:
            raise forbidden("You may not grant roles", "This needs the role platform-admin.")
        if given.role is Role.HUB or not is_address(normal(email)):
            why = "A role is granted to an e-mail address. Hubs are named in the settings."
            raise Problem(
                422, "bad-role", "This role cannot be granted", why, "grant member, lab-admin or platform-admin"
            )
        grant = Grant(normal(email), given.role, person.email, given.reason, self.authenticator.now())
        await self.authenticator.people.grant(grant)
        return Response(status_code=204)

    async def sign_out_everywhere(self, email: str, person: CurrentPerson) -> dict[str, Any]:
        """Ends all sessions of a person and revokes their tokens. For others this needs platform-admin."""
        if normal(email) != person.email and not person.is_platform_admin:
            raise forbidden("You may not sign others out", "This needs the role platform-admin.")
        if not is_address(normal(email)):
            return {"ended": 0}
        return {"ended": await self.authenticator.people.sign_out_everywhere(normal(email), self.authenticator.now())}


def _check_browser_session(person: Person) -> None:
    if person.how not in BROWSER_SESSIONS:
        raise forbidden("A token cannot create tokens", "A person who is signed in with a browser creates them.")


def _shown(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "label": token.label,
        "email": token.email,
        "scopes": sorted(scope.value for scope in token.scopes),
        "created": token.created.isoformat(),
        "expires": token.expires.isoformat(),
        "last_used": token.last_used.isoformat() if token.last_used else None,
        "revoked": token.revoked.isoformat() if token.revoked else None,
    }


def credential_routes(authenticator: Authenticator, responses: dict[int | str, dict[str, Any]]) -> list[BaseRoute]:
    """`responses`: what the document says of errors."""
    routes = CredentialRoutes(authenticator)
    api = APIRouter(prefix="/api/v1", tags=["people"], responses=responses)
    api.add_api_route("/me", routes.me, methods=["GET"])
    api.add_api_route("/tokens", routes.tokens, methods=["GET"])
    api.add_api_route("/tokens", routes.make_token, methods=["POST"], status_code=201)
    api.add_api_route("/tokens/exchange", routes.exchange, methods=["POST"])
    api.add_api_route("/tokens/{token_id}", routes.revoke, methods=["DELETE"], response_model=None, status_code=204)
    api.add_api_route("/people", routes.known_people, methods=["GET"])
    api.add_api_route("/people/{email}/role", routes.give_role, methods=["PUT"], response_model=None, status_code=204)
    api.add_api_route("/people/{email}/sign-out", routes.sign_out_everywhere, methods=["POST"])
    pages = APIRouter(include_in_schema=False)
    pages.add_api_route("/cli-login", routes.ask_to_allow, methods=["GET"], response_model=None)
    pages.add_api_route("/cli-login", routes.allow, methods=["POST"], response_model=None)
    return [*api.routes, *pages.routes]
