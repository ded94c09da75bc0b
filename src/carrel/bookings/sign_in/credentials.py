"""Tokens and roles over HTTP: who am I, my tokens, a command line's login, and what people may do.

A token is made by a person in person: a token cannot make another, so a leaked one ends when it is revoked. A command
line gets its token for a code that came through the person's browser and for a proof (PKCE) that only it has, so that
neither the browser's history nor another program on the machine has it.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.bookings.people import Grant, How, PendingLogin, Person, Role, Scope, Token, is_address, normal
from carrel.bookings.sign_in import forms
from carrel.bookings.sign_in.identity import CurrentPerson, Identity, forbidden
from carrel.bookings.sign_in.oidc import challenge_of
from carrel.bookings.sign_in.secrets import hashed, is_same, new_secret, new_token
from carrel.http.problems import Problem

ON_THE_WAY = timedelta(minutes=2)
IN_PERSON = (How.SESSION, How.DEV)
DEFAULT_DAYS = 30
PLAIN = r"^[^\x00-\x1f\x7f]*$"
"""Without control characters, which not every database can keep."""


class NewToken(BaseModel):
    label: str = Field(min_length=1, max_length=100, pattern=PLAIN, examples=["my notebook"])
    scopes: list[Scope] = Field(default=[Scope.READ, Scope.BOOK], min_length=1, max_length=len(Scope))
    days: int = Field(default=DEFAULT_DAYS, ge=1, le=3650, description="Shortened to what the service allows.")


class Question(BaseModel):
    """What a command line asks for through its person's browser; only `carrel login` makes such."""

    port: int = Field(ge=1024, le=65535, description="Of this machine, where the command line listens.")
    state: str = Field(min_length=16, max_length=200, pattern=PLAIN)
    challenge: str = Field(min_length=43, max_length=128, pattern=PLAIN)
    label: str = Field(min_length=1, max_length=100, pattern=PLAIN)
    scopes: str = Field(pattern="^(read|book|admin)( (read|book|admin)){0,2}$")


class Exchange(BaseModel):
    code: str = Field(max_length=200)
    verifier: str = Field(min_length=43, max_length=128)


class GivenRole(BaseModel):
    role: Role | None = Field(description="None takes it away.")
    reason: str = Field(min_length=1, max_length=500, pattern=PLAIN)


@dataclass(frozen=True, slots=True)
class CredentialsDesk:
    identity: Identity

    async def me(self, request: Request, person: CurrentPerson) -> dict[str, Any]:
        """Who you are here, and what you may do."""
        return {
            "email": person.email,
            "name": person.name,
            "roles": sorted(role.value for role in person.roles),
            "scopes": sorted(scope.value for scope in person.scopes),
            "how": person.how.value,
        }

    async def tokens(self, person: CurrentPerson) -> dict[str, Any]:
        """Your tokens; never their secrets."""
        return {"tokens": [_shown(token) for token in await self.identity.people.tokens_of(person.email)]}

    async def make_token(
        self, request: Request, wanted: NewToken, person: CurrentPerson, response: Response
    ) -> dict[str, Any]:
        """A new token. Its secret is in this answer and nowhere else."""
        _check_in_person(person)
        response.headers["cache-control"] = "no-store"
        return await self._made(replace(person, roles=await self._vouched_for(request)), wanted)

    async def revoke(self, token_id: str, person: CurrentPerson) -> Response:
        """The token is worth nothing from now on. A token may revoke itself and its siblings."""
        is_id = token_id.isascii() and token_id.isprintable()
        if not is_id or not await self.identity.people.revoke_token(person.email, token_id, self.identity.now()):
            why = "You have no token of that id."
            raise Problem(404, "not-found", "No such token", why, "list them at /api/v1/tokens")
        return Response(status_code=204)

    async def ask_to_allow(
        self, request: Request, person: CurrentPerson, question: Annotated[Question, Query()]
    ) -> Response:
        """A command line on this person's machine asks for a token; the person is asked."""
        asked = {name: str(value) for name, value in question.model_dump().items()}
        csrf = self.identity.csrf_token(request)
        return forms.allow_command_line(person.email, csrf, asked, f"http://127.0.0.1:{question.port}")

    async def allow(self, request: Request, person: CurrentPerson, question: Annotated[Question, Form()]) -> Response:
        """The person said yes: the command line, which listens on loopback, gets a code that it can exchange."""
        _check_in_person(person)
        code = new_secret()
        facts = {
            "challenge": question.challenge,
            "label": question.label,
            "scopes": question.scopes,
            "email": person.email,
            "roles": " ".join(role.value for role in await self._vouched_for(request)),
            "how": person.how.value,
        }
        await self.identity.people.begin_login(hashed(code), PendingLogin(facts, self.identity.now() + ON_THE_WAY))
        answer = urlencode({"code": code, "state": question.state})
        return RedirectResponse(f"http://127.0.0.1:{question.port}/?{answer}", 303)

    async def exchange(self, given: Exchange, response: Response) -> dict[str, Any]:
        """The code that a browser brought, and the proof that whoever brings it asked for it: a token."""
        login = await self.identity.people.take_login(hashed(given.code), self.identity.now())
        if login is None or not is_same(challenge_of(given.verifier), login.facts["challenge"]):
            why = "The code is unknown, was used, has expired, or is another program's."
            raise Problem(403, "bad-code", "No token for this code", why, "carrel login")
        scopes = [Scope(each) for each in login.facts["scopes"].split()]
        roles = frozenset(Role(each) for each in login.facts["roles"].split())
        person = Person(login.facts["email"], roles=roles, how=How(login.facts["how"]))
        response.headers["cache-control"] = "no-store"
        return await self._made(person, NewToken(label=login.facts["label"], scopes=scopes))

    async def _vouched_for(self, request: Request) -> frozenset[Role]:
        """What the session itself brings. What settings and grants give is looked up at each call of a token, too: kept
        in it, it would outlive the day on which it is taken away."""
        secret = hashed(self.identity.session_secret(request))
        session = await self.identity.people.session(secret, self.identity.now())
        return session.roles if session else frozenset()

    async def _made(self, person: Person, wanted: NewToken) -> dict[str, Any]:
        secret, now = new_token(), self.identity.now()
        expires = now + min(timedelta(days=wanted.days), self.identity.premises.longest_token)
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
        await self.identity.people.add_token(hashed(secret), token)
        return {**_shown(token), "token": secret}

    async def known_people(self, person: CurrentPerson) -> dict[str, Any]:
        """Who has been here, and what they may do."""
        if not person.is_lab_admin:
            raise forbidden("You may not see everybody", "This needs the role lab-admin.")
        return {
            "people": [
                {
                    "email": each.email,
                    "name": each.name,
                    "granted": each.granted.value if each.granted else None,
                    "roles": sorted(role.value for role in self.identity.roles.by_name(each.email, each.granted)),
                    "last_seen": each.last_seen.isoformat() if each.last_seen else None,
                }
                for each in await self.identity.people.known()
            ]
        }

    async def give_role(self, email: str, given: GivenRole, person: CurrentPerson) -> Response:
        """Give a person a role, or take it away, beside what the settings and the provider's groups give."""
        if not person.is_platform_admin:
            raise forbidden("You may not give roles", "This needs the role platform-admin.")
        if given.role is Role.SERVICE or not is_address(normal(email)):
            why = "A role is given to an address; services are named in the settings."
            raise Problem(422, "bad-role", "Nobody can be given that", why, "give member, lab-admin or platform-admin")
        grant = Grant(normal(email), given.role, person.email, given.reason, self.identity.now())
        await self.identity.people.grant(grant)
        return Response(status_code=204)

    async def sign_out_everywhere(self, email: str, person: CurrentPerson) -> dict[str, Any]:
        """End all sessions of a person and revoke their tokens; another's, as a platform admin."""
        if normal(email) != person.email and not person.is_platform_admin:
            raise forbidden("You may not sign others out", "This needs the role platform-admin.")
        if not is_address(normal(email)):
            return {"ended": 0}
        return {"ended": await self.identity.people.sign_out_everywhere(normal(email), self.identity.now())}


def _check_in_person(person: Person) -> None:
    if person.how not in IN_PERSON:
        raise forbidden("A token cannot make tokens", "They are made by a person who is signed in with a browser.")


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


def credentials_router(identity: Identity) -> APIRouter:
    desk = CredentialsDesk(identity)
    api = APIRouter(prefix="/api/v1", tags=["people"])
    api.add_api_route("/me", desk.me, methods=["GET"])
    api.add_api_route("/tokens", desk.tokens, methods=["GET"])
    api.add_api_route("/tokens", desk.make_token, methods=["POST"], status_code=201)
    api.add_api_route("/tokens/exchange", desk.exchange, methods=["POST"])
    api.add_api_route("/tokens/{token_id}", desk.revoke, methods=["DELETE"], response_model=None, status_code=204)
    api.add_api_route("/people", desk.known_people, methods=["GET"])
    api.add_api_route("/people/{email}/role", desk.give_role, methods=["PUT"], response_model=None, status_code=204)
    api.add_api_route("/people/{email}/sign-out", desk.sign_out_everywhere, methods=["POST"])
    pages = APIRouter(include_in_schema=False)
    pages.add_api_route("/cli-login", desk.ask_to_allow, methods=["GET"], response_model=None)
    pages.add_api_route("/cli-login", desk.allow, methods=["POST"], response_model=None)
    api_and_pages = APIRouter()
    api_and_pages.include_router(api)
    api_and_pages.include_router(pages)
    return api_and_pages
