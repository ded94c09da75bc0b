"""One connection to a server: uvicorn's, with limits.

    silent ──► header ──► body ──► answering ──► idle ──► header …        refused ──► closed
      │           │         │                                                ▲
      └───────────┴─────────┴────────── too large, or too late ──────────────┘

Header: 431 if it is too large or has too many fields, 408 if it comes too slowly. Body: 408 if it comes too slowly; how
large it may be depends on the path, so the app decides that. A refused connection is read for a moment longer: if it
were closed before its caller has stopped sending, the caller could not read why.
A request that comes before the one before it is answered closes the connection: Carrel's callers send none.
"""

import asyncio
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from carrel.http.asgi import Refused, overloaded
from carrel.http.health import is_probe
from carrel.http.limits import KEEP_ALIVE_S, ServerLimits
from carrel.http.open_connections import OpenConnections, Waits

LINGER_S = 2.0
LINGER_BYTES = 1024 * 1024
"""How long, and how much, is read of a caller that was refused."""


class Phase(Enum):
    SILENT = auto()
    HEADER = auto()
    BODY = auto()
    ANSWERING = auto()
    IDLE = auto()
    REFUSED = auto()


class LimitedConnection(HttpToolsProtocol):
    def __init__(
        self, config: uvicorn.Config, state: ServerState, limits: ServerLimits, open_connections: OpenConnections
    ) -> None:
        super().__init__(config, state, {})
        self.peer = ""
        self.opening: asyncio.Task[None] | None = None
        """While it is accepted, and the TLS handshake lasts."""
        self.is_for_probes = False
        """Other requests are answered with 503."""
        self._limits = limits
        self._open = open_connections
        self._phase, self._since = Phase.SILENT, self.loop.time()
        self._received = self._header_bytes = 0
        self._stalled_since = 0.0
        self._why: Refused | None = None
        self._certificate: dict[str, Any] | None = None

    # --- for the server ----------------------------------------------------------------------------------------------

    @property
    def waits(self) -> Waits:
        return {Phase.ANSWERING: Waits.FOR_US, Phase.IDLE: Waits.IDLE}.get(self._phase, Waits.FOR_A_REQUEST)

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
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self._certificate = tls.getpeercert()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
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
        if self._phase is Phase.ANSWERING:
            raise self._refused(Refused(400, "wait for the answer before you send another request"))
        super().on_message_begin()
        self._header_bytes = 0
        if self._certificate is not None:
            # As ASGI's extension for TLS has it.
            self.scope["extensions"] = {"tls": {"client_cert_name": _name(self._certificate)}}

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))
        if len(self.headers) > self._limits.headers:
            raise self._refused(Refused(431, f"the request has more than {self._limits.headers} header fields"))

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.header_bytes:
            raise self._refused(self._too_large())

    def on_headers_complete(self) -> None:
        if self.is_for_probes and not is_probe(self.parser.get_method(), self.url):
            self.app = overloaded
        super().on_headers_complete()  # fails if the address is none
        self._enter(Phase.BODY)

    def on_message_complete(self) -> None:
        self._enter(Phase.IDLE if self.cycle.response_complete else Phase.ANSWERING)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._phase is Phase.ANSWERING:  # else the body, which nobody needed, is still coming
            self._enter(Phase.IDLE)
        super().on_response_complete()

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
        self._enter(Phase.REFUSED)
        if self.transport.is_closing():
            return
        status = HTTPStatus(why.status)
        self.transport.write(f"HTTP/1.1 {status} {status.phrase}\r\n".encode() + why.header() + why.body)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _enter(self, phase: Phase) -> None:
        self._phase, self._since, self._received = phase, self.loop.time(), 0


def _name(certificate: dict[str, Any]) -> str | None:
    """The subject of a client certificate that was verified; None: the caller has shown none."""
    parts = [f"{key}={value}" for part in certificate.get("subject", ()) for key, value in part]
    return ",".join(parts) if certificate else None
