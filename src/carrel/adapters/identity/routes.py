"""Signing in and out with a browser: at the provider, or by saying so on one's own machine."""

from dataclasses import dataclass
from datetime import timedelta

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.adapters.identity import forms
from carrel.adapters.identity.oidc import SignInFailed
from carrel.adapters.identity.recognition import CurrentPerson, Identity, NotSignedIn
from carrel.adapters.identity.secrets import hashed, is_same, new_secret
from carrel.adapters.problems import Problem, answer_problem
from carrel.ports.people import Errand, How, Role, Session, normal

SIGN_IN = "sign-in"
ON_THE_WAY = timedelta(minutes=10)
"""How long somebody may take at the provider's."""
SEE_OTHER = 303


def path_of_ours(wanted: str) -> str:
    """Where to go after signing in; never to another site, however it is spelled."""
    is_ours = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_ours else "/"


@dataclass(frozen=True, slots=True)
class SignInDesk:
    identity: Identity

    async def begin(self, request: Request) -> Response:
        means, back_to = self.identity.means, path_of_ours(request.query_params.get("back", "/"))
        if means.is_dev:
            return forms.dev_form(back_to)
        if means.sign_in is None:
            return forms.no_way_in()
        state, nonce, verifier = new_secret(), new_secret(), new_secret()
        try:
            url = await means.sign_in.url(state, nonce, verifier)
        except SignInFailed as failure:
            return forms.failed(str(failure))
        facts = {"nonce": nonce, "verifier": verifier, "back_to": back_to}
        errand = Errand(SIGN_IN, facts, self.identity.now() + ON_THE_WAY)
        await self.identity.people.begin_errand(hashed(state), errand)
        response = RedirectResponse(url, SEE_OTHER)
        self._set(response, self._errand_cookie, state, ON_THE_WAY)
        return response

    async def finish(self, request: Request) -> Response:
        """The state must be the one that this browser was given, and works once: nobody is signed in as another."""
        state, sign_in = request.query_params.get("state", ""), self.identity.means.sign_in
        if sign_in is None:
            return forms.no_way_in()
        if not state or not is_same(state, request.cookies.get(self._errand_cookie, "")):
            return forms.failed("This sign-in was not begun in this browser")
        errand = await self.identity.people.take_errand(hashed(state), SIGN_IN, self.identity.now())
        if errand is None:
            return forms.failed("This sign-in was used before, or took too long")
        if "error" in request.query_params:
            return forms.failed(f"The identity provider said: {request.query_params['error'][:200]}")
        try:
            code = request.query_params.get("code", "")
            claimed = await sign_in.finish(code, errand.facts["verifier"], errand.facts["nonce"])
        except SignInFailed as failure:
            return forms.failed(str(failure))
        roles = self.identity.roles.by_groups(claimed.groups)
        if not roles | self.identity.roles.by_name(claimed.email, await self.identity.people.granted(claimed.email)):
            return forms.failed(f"{claimed.email} is in no group that may use this service")
        response = await self._session(
            request, claimed.email, claimed.name, roles, How.SESSION, errand.facts["back_to"]
        )
        response.delete_cookie(self._errand_cookie, path="/", secure=self.identity.premises.is_https, httponly=True)
        return response

    async def say_so(self, request: Request) -> Response:
        """`--dev`: whoever is on this machine is who they say."""
        if not self.identity.means.is_dev or not self.identity.is_own_page(request):
            raise Problem(404, "not-found", "There is no such page", "This sign-in is for trying it.", "open /sign-in")
        form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
        email, role = normal(form.get("email", "")), form.get("role", Role.MEMBER.value)
        if "@" not in email or len(email) > 254 or role not in ("member", "lab-admin", "platform-admin"):
            return forms.failed("An address and a role are needed")
        roles = frozenset({Role.MEMBER, Role(role)})
        return await self._session(request, email, "", roles, How.DEV, path_of_ours(form.get("back", "/")))

    async def sign_out(self, request: Request, person: CurrentPerson) -> Response:
        """`person` proves that the call comes from a page of ours."""
        await self.identity.people.end_session(hashed(self.identity.session_secret(request)))
        response = RedirectResponse("/", SEE_OTHER)
        premises = self.identity.premises
        response.delete_cookie(premises.cookie, path="/", secure=premises.is_https, httponly=True, samesite="lax")
        return response

    async def _session(
        self, request: Request, email: str, name: str, roles: frozenset[Role], how: How, back_to: str
    ) -> Response:
        """A new secret each time, and the old session ends: a cookie that was planted before is worth nothing."""
        secret, now = new_secret(), self.identity.now()
        premises = self.identity.premises
        session = Session(email, name, roles, how, now, now + premises.session)
        old = self.identity.session_secret(request)
        if old:
            await self.identity.people.end_session(hashed(old))
        await self.identity.people.begin_session(hashed(secret), session)
        response = RedirectResponse(back_to, SEE_OTHER)
        self._set(response, premises.cookie, secret, premises.session)
        return response

    @property
    def _errand_cookie(self) -> str:
        return f"{self.identity.premises.cookie}-sign-in"

    def _set(self, response: Response, name: str, secret: str, age: timedelta) -> None:
        is_https = self.identity.premises.is_https
        seconds = int(age.total_seconds())
        response.set_cookie(name, secret, seconds, path="/", secure=is_https, httponly=True, samesite="lax")


async def _answer_stranger(request: Request, problem: Exception) -> Response:
    """A browser that wants a page is shown where to sign in."""
    wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if wants_page and not request.url.path.startswith("/api/"):
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(
            str(request.url.replace(path="/sign-in", query="").include_query_params(back=here)), SEE_OTHER
        )
    return await answer_problem(request, problem)


def sign_in_router(identity: Identity) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    desk = SignInDesk(identity)
    router.add_api_route("/sign-in", desk.begin, methods=["GET"], response_model=None)
    router.add_api_route("/sign-in/callback", desk.finish, methods=["GET"], response_model=None)
    router.add_api_route("/sign-in/dev", desk.say_so, methods=["POST"], response_model=None)
    router.add_api_route("/sign-out", desk.sign_out, methods=["POST"], response_model=None)
    return router


def install_identity(app: FastAPI, identity: Identity) -> None:
    """Everything about people, on an app: `CurrentPerson` works in its routes, and problems are answered as such."""
    from carrel.adapters.identity.credentials import credentials_router

    app.state.identity = identity
    app.add_exception_handler(Problem, answer_problem)
    app.add_exception_handler(NotSignedIn, _answer_stranger)
    app.include_router(sign_in_router(identity))
    app.include_router(credentials_router(identity))
