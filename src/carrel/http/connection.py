"""One connection to a server: uvicorn's, with limits.

    silent ──► header ──► body ──► answering ──► idle ──► header …        refused ──► closed
      │           │         │                                                ▲
      └───────────┴─────────┴────────── too large, or too late ──────────────┘

Header: 431 if it is too large or has too many fields, 408 if it comes too slowly. Body: 408 if it comes too slowly; how
large it may be depends on the path, so the app decides that. A refused connection is read for a moment longer: if it
were closed before its caller has stopped sending, the caller could not read why.
"""

import asyncio
import logging
from collections.abc import Awaitable
from enum import Enum, auto
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from carrel.http.asgi import Scope
from carrel.http.direct_request import DEFECT, DirectRequest, written
from carrel.http.limits import KEEP_ALIVE_S, ServerLimits
from carrel.http.open_connections import OpenConnections, Room, Waits
from carrel.http.post_routes import JsonReply, routes_of
from carrel.http.probes import is_probe
from carrel.http.refusals import Refused, overloaded

log = logging.getLogger(__name__)

LINGER_S = 2.0
LINGER_BYTES = 1024 * 1024
"""How long, and how much, is read of a caller that was refused."""
PIPELINED = 8
"""Requests that wait for the answer of the one before. Carrel's callers send none."""


class Phase(Enum):
    SILENT = auto()
    HEADER = auto()
    BODY = auto()
    ANSWERING = auto()
    IDLE = auto()
    REFUSED = auto()


_WAITS = {
    Phase.SILENT: Waits.FOR_A_REQUEST,
    Phase.HEADER: Waits.FOR_A_REQUEST,
    Phase.BODY: Waits.FOR_A_REQUEST,
    Phase.ANSWERING: Waits.FOR_US,
    Phase.IDLE: Waits.IDLE,
    Phase.REFUSED: Waits.FOR_A_REQUEST,
}


class LimitedConnection(HttpToolsProtocol):
    def __init__(
        self, config: uvicorn.Config, state: ServerState, limits: ServerLimits, open_connections: OpenConnections
    ) -> None:
        super().__init__(config, state, {})
        self.peer = ""
        self.opening: asyncio.Task[None] | None = None
        """While the TLS handshake lasts."""
        self.is_for_probes = False
        """Other requests are answered with 503."""
        self._limits = limits
        self._open = open_connections
        self._phase, self._since = Phase.SILENT, self.loop.time()
        self._is_in_message = False
        self._received = self._header_bytes = self._headers = 0
        self._stalled_since = 0.0
        self._why: Refused | None = None
        self._certificate: dict[str, Any] | None = None
        self._direct: DirectRequest | None = None
        """A request whose body has not come completely yet."""
        self._answering: RequestResponseCycle | None = None
        """The request that is answered; `cycle` is the last one that came."""

    # --- for the server ----------------------------------------------------------------------------------------------

    @property
    def waits(self) -> Waits:
        return _WAITS[self._phase]

    def abort(self) -> None:
        if self.opening is not None:
            self.opening.cancel()
        if self.transport is not None:
            self.transport.abort()

    def check_time(self, now: float) -> None:
        """To be called every second."""
        waited, phase = now - self._since, self._phase
        if phase is Phase.HEADER and waited > self._limits.header_s:
            self._refuse(Refused(408, f"the header of the request took more than {self._limits.header_s:.0f} s"))
        elif phase is Phase.BODY and waited > self._limits.body_s and not self.flow.read_paused:
            self._refuse(Refused(408, f"the body of the request took more than {self._limits.body_s:.0f} s"))
        elif (
            (phase is Phase.REFUSED and waited > LINGER_S)
            or (phase is Phase.SILENT and waited > KEEP_ALIVE_S)
            or (self._stalled_since and now - self._stalled_since > self._limits.stalled_s)
        ):
            self.abort()
        elif phase is Phase.IDLE and waited > KEEP_ALIVE_S:
            self.transport.close()

    # --- the connection ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        if self not in self._open:  # asyncio has accepted it, without TLS
            self.peer = self.client[0] if self.client else ""
            room = self._open.add(self)
            if room is Room.NONE:
                transport.abort()
            self.is_for_probes = room is Room.FOR_PROBES
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self._certificate = tls.getpeercert()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        self._end_direct()
        if self._answering is not None:
            self._answering.disconnected = True  # uvicorn tells only the last request that came
            self._answering.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._stalled_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since = 0.0
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.REFUSED:
            self._received += len(data)
            if self._received > LINGER_BYTES:
                self.abort()
            return
        if self._phase is Phase.SILENT or self._phase is Phase.IDLE:
            self._enter(Phase.HEADER)
        self._received += len(data)
        super().data_received(data)
        # The parser keeps what it has of a field until the field is complete.
        if self._phase is Phase.HEADER and self._received > self._limits.header_bytes:
            self._refuse(self._too_large())

    # --- a request, as the parser finds it ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_message = True
        if self._phase is Phase.IDLE:
            self._enter(Phase.HEADER)  # it follows a request that was answered at once
        self._header_bytes = self._headers = 0
        if len(self.pipeline) >= PIPELINED:
            raise self._refused(Refused(400, "wait for answers before you send more requests"))
        if self._certificate is not None:
            # As ASGI's extension for TLS has it.
            self.scope["extensions"] = {"tls": {"client_cert_name": _name(self._certificate)}}

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._headers += 1
        self._count(len(name) + len(value))
        if self._headers > self._limits.headers:
            raise self._refused(Refused(431, f"the request has more than {self._limits.headers} header fields"))

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.header_bytes:
            raise self._refused(self._too_large())

    def on_headers_complete(self) -> None:
        if self.is_for_probes and not is_probe(self.parser.get_method(), self.url):
            self.app = overloaded
        super().on_headers_complete()  # fails if the address is none
        if self._phase is Phase.HEADER:
            self._enter(Phase.BODY)

    def on_body(self, body: bytes) -> None:
        if self._direct is not None and not self._direct.takes(len(body)):
            self._leave_to_asgi(self._direct)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_message = False
        if not self.cycle.response_complete:
            self._enter(Phase.ANSWERING)
        super().on_message_complete()
        if self._direct is not None and self._direct.cycle is self.cycle:
            self._answer(self._direct)

    def on_response_complete(self) -> None:
        """Go on with the next request. Unlike uvicorn's, it starts no timer: `check_time` closes idle connections."""
        if self._phase is Phase.ANSWERING and not self.pipeline:
            self._enter(Phase.HEADER if self._is_in_message else Phase.IDLE)
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            if cycle.more_body:
                self._enter(Phase.BODY)  # its body has to come within its time, too
            self._start_asgi_task(cycle, app)

    # --- requests that are answered without ASGI ---------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Called when the header of a request has come, and the requests before it are answered."""
        self._answering = cycle
        is_ordinary = not (self.flow.write_paused or cycle.waiting_for_100_continue)
        routes, scope = routes_of(app) if is_ordinary else None, cast("Scope", cycle.scope)
        route = routes.route_of(scope, scope["path"]) if routes is not None else None
        if route is None:
            super()._start_asgi_task(cycle, app)
            return
        direct = self._direct = DirectRequest(cycle, app, route)
        if cycle.body and not direct.takes(len(cycle.body)):  # it has waited for others
            self._leave_to_asgi(direct)
        elif not cycle.more_body:
            self._answer(direct)

    def _leave_to_asgi(self, direct: DirectRequest) -> None:
        self._end_direct()
        super()._start_asgi_task(direct.cycle, direct.app)  # type: ignore[arg-type] # uvicorn's types are stricter

    def _end_direct(self) -> None:
        if self._direct is not None:
            self._direct.release()
            self._direct = None

    def _answer(self, direct: DirectRequest) -> None:
        self._direct = None
        try:
            reply = direct.reply()
        except Exception:
            log.exception("answer_broke")
            reply = DEFECT
        if isinstance(reply, JsonReply):
            direct.release()
            self._send(direct.cycle, reply)
            return
        task = self.loop.create_task(self._send_when_known(direct, reply))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _send_when_known(self, direct: DirectRequest, reply: Awaitable[JsonReply]) -> None:
        try:
            known = await reply
        except Exception:
            log.exception("answer_broke")
            known = DEFECT
        finally:
            direct.release()
        if self.flow.write_paused and not direct.cycle.disconnected:
            await self.flow.drain()
        self._send(direct.cycle, known)

    def _send(self, cycle: RequestResponseCycle, reply: JsonReply) -> None:
        if cycle.disconnected or self.transport.is_closing():
            return
        cycle.response_started = cycle.response_complete = True
        self.transport.write(written(reply, cycle))
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    # --- refusals ----------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Called when the parser failed: because of what it read, or because of what we raised meanwhile."""
        self._refuse(self._why or Refused(400, "this is not a request of HTTP/1.1"))

    def _too_large(self) -> Refused:
        return Refused(431, f"the header of the request has more than {self._limits.header_bytes} bytes")

    def _refused(self, why: Refused) -> Exception:
        """Raised while the parser runs, it ends it."""
        self._why = why
        return ValueError(why.sentence)

    def _refuse(self, why: Refused) -> None:
        cycle, is_answered = self.cycle, self._phase is not Phase.BODY or self.cycle.response_started
        if cycle is not None and not cycle.response_complete and is_answered:
            self.abort()  # an answer is under way: ours would be read as a part of it
            return
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # the app, which waits for the body, need not answer
            cycle.message_event.set()
            self._end_direct()
        self._enter(Phase.REFUSED)
        if self.transport.is_closing():
            return
        self.transport.write(STATUS_LINE[why.status] + why.header() + why.body)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _enter(self, phase: Phase) -> None:
        self._phase, self._since, self._received = phase, self.loop.time(), 0


def _name(certificate: dict[str, Any]) -> str | None:
    """The subject of a client certificate that was verified; None: the caller has shown none."""
    parts = [f"{key}={value}" for part in certificate.get("subject", ()) for key, value in part]
    return ",".join(parts) if certificate else None
