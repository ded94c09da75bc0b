"""A signed-in person without a real browser: a session, and forms with the CSRF token."""

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlencode

from carrel.bookings.people import How, Role, Session
from carrel.bookings.sign_in.secrets import csrf_of, hashed, new_secret
from tests.kit.booking import NOW, Answer, Caller, Opened

FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Visitor:
    caller: Caller
    secret: str

    async def get(self, path: str) -> Answer:
        return await self.caller.get(path, accept="text/html", cookie=f"carrel={self.secret}")

    async def send(self, path: str, csrf: str | None = None, **form: str) -> Answer:
        """`csrf` is the right token unless it is given."""
        proof = csrf_of(self.secret) if csrf is None else csrf
        body = urlencode({**form, "csrf": proof}).encode()
        return await self.caller.post(path, body, content_type=FORM, accept="text/html", cookie=f"carrel={self.secret}")


async def a_visitor(opened: Opened, email: str, role: Role = Role.MEMBER) -> Visitor:
    secret = new_secret()
    session = Session(email, "", frozenset({Role.MEMBER, role}), How.SESSION, NOW, NOW + timedelta(days=365))
    await opened.people.begin_session(hashed(secret), session)
    return Visitor(opened.nobody, secret)


def text_of(answer: Answer) -> str:
    return answer.body.decode()
