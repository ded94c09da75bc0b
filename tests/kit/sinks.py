"""Receivers of notifications in tests: a mail server and an HTTP server that keep what they get, or refuse it."""

import asyncio
import contextlib
import email
import email.policy
from collections.abc import AsyncIterator
from email.message import EmailMessage

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from carrel.http.serving import Address, serving


class MailSink:
    """Speaks as much SMTP as a client needs to hand over a message."""

    def __init__(self) -> None:
        self.url = ""
        self.messages: list[EmailMessage] = []
        self.recipients: list[str] = []
        self.extensions: list[str] = []
        """What it can do besides, such as `SMTPUTF8`."""
        self.refusal = ""
        """The answer to the recipient, such as `550 no such user`."""
        self.is_cut = False
        """The connection ends after the message was taken, before that is said."""

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["MailSink"]:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self.url = f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self
            server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(line: str) -> None:
            writer.write(f"{line}\r\n".encode())

        say("220 sink")
        while line := (await reader.readline()).decode().strip():
            verb = line.split()[0].upper()
            if verb == "EHLO":
                for line in ("sink", *self.extensions):
                    say(f"250-{line}")
                say("250 HELP")
            elif verb == "RCPT":
                say(self.refusal or "250 ok")
                self.recipients.append(line.partition("<")[2].removesuffix(">"))
            elif verb == "DATA":
                say("354 go on")
                raw = (await reader.readuntil(b"\r\n.\r\n")).removesuffix(b".\r\n")
                message = email.message_from_bytes(raw, policy=email.policy.default)
                assert isinstance(message, EmailMessage)
                self.messages.append(message)
                if self.is_cut:
                    break
                say("250 taken")
            else:
                say("221 bye" if verb == "QUIT" else "250 ok")
                if verb == "QUIT":
                    break
        writer.close()


class PostSink:
    """A receiver of posts, and the stand-in for chats: any path, POST and PUT."""

    def __init__(self) -> None:
        self.url = ""
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.calls: list[str] = []
        """Method and path, as they were sent."""
        self.status = 204
        self.headers: dict[str, str] = {}
        self.answers: dict[str, list[int]] = {}
        """Path → what is answered there first, one after the other."""

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["PostSink"]:
        async def take(request: Request) -> Response:
            path = request.scope["raw_path"].decode()
            query = request.scope["query_string"].decode()
            self.calls.append(f"{request.method} {path}" + (f"?{query}" if query else ""))
            self.posts.append((dict(request.headers), await request.body()))
            first = self.answers.get(path)
            return Response(status_code=first.pop(0) if first else self.status, headers=self.headers)

        app = Starlette(routes=[Route("/{path:path}", take, methods=["POST", "PUT"])])
        async with serving(app, Address()) as url:
            self.url = f"{url}/hook"
            yield self

    @property
    def host(self) -> str:
        """With the port, as an admin lists it."""
        return self.url.split("/")[2]
