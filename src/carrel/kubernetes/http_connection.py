"""One connection to an API server: HTTP/1.1, one call at a time, and nothing that Carrel does not need.

A general HTTP library takes several times the CPU for a call, which was a third of what the extender spent on a pod.

    idle ──► called ──► answered ──► idle          a watch ──► streaming ──► closed
               └── time is up, cancelled, broken ──► closed

A connection that broke or whose answer was not read to its end is never used again.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import NamedTuple, cast

import httptools

MOST_HEADER_BYTES = 64 * 1024
MOST_BUFFERED = 1024 * 1024
"""Of a stream that is read more slowly than it is written: then the server has to wait."""


class ConnectionBroken(Exception):
    """It was closed in the middle of a call, or something came that is not HTTP/1.1."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    """Keys in lower case. What was sent several times is joined by commas."""
    body: bytes
    stream: AsyncGenerator[bytes, None] | None


StreamError = Callable[[Exception], Exception]
"""What a stream raises that breaks."""


class HttpConnection(asyncio.Protocol):
    """Made by `loop.create_connection`."""

    def __init__(self, tls: ssl.SSLContext | None, on_closed: Callable[["HttpConnection"], None]) -> None:
        """`on_closed` is called once, however it ends."""
        self.tls = tls
        self.name = ""
        """Our own end, which no other connection has meanwhile."""
        self.calls = 0
        self.idle_since = 0.0
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._stream_error: StreamError | None = None
        self._stream: _Stream | None = None
        self._status = 0
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._chunks: list[bytes] = []
        self._ends_with_connection = False
        self._is_begun = False
        self._is_kept = False

    @property
    def is_open(self) -> bool:
        """Whether another call may be made."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_begun(self) -> bool:
        """Whether some of the answer has come."""
        return self._is_begun

    async def call(self, request: bytes, limit_s: float, stream_error: StreamError | None = None) -> Answer:
        """Raises `ConnectionBroken`, or `TimeoutError` after so many seconds. With `stream_error`, the body of a good
        answer is a stream that raises such errors, and the time limit ends with its header."""
        if self._transport is None or not self.is_open:
            raise ConnectionBroken("it was closed before the call was sent")
        self.calls += 1
        self._stream_error, self._is_begun, self._is_kept = stream_error, False, False
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._answer = answer
        timer = self._loop.call_later(limit_s, self._time_is_up, limit_s)
        self._transport.write(request)
        try:
            return await answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None
            timer.cancel()

    @property
    def is_kept(self) -> bool:
        """Whether the answer has come completely, and the server keeps the connection open."""
        return self._is_kept and self.is_open

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _time_is_up(self, limit_s: float) -> None:
        self._fail(TimeoutError(f"no answer within {limit_s:g} s"))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        if self._stream is not None:
            self._stream.end(error)
        self.close()

    # --- the socket --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        self.name = str(transport.get_extra_info("sockname"))

    def data_received(self, data: bytes) -> None:
        if self._answer is None and self._stream is None:
            self.close()  # nobody has asked anything
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionBroken(f"this is no answer of HTTP/1.1: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._ends_with_connection and error is None:
            self.on_message_complete()
        self._fail(ConnectionBroken(str(error) if error else "the server closed the connection"))
        self._transport = None
        self._on_closed(self)

    # --- an answer, as the parser finds it ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            raise ValueError("more came than was asked for")  # or it would be the answer to the next call
        self._is_begun = True
        self._headers, self._header_bytes, self._chunks = {}, 0, []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MOST_HEADER_BYTES:
            raise ValueError(f"its header has more than {MOST_HEADER_BYTES} bytes")
        key, text = name.decode("latin-1").lower(), value.decode(errors="replace")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status < 200:
            return
        has_length = "content-length" in self._headers or "transfer-encoding" in self._headers
        self._ends_with_connection = not has_length and self._status not in (204, 304)
        if self._stream_error is not None and self._status == 200:
            self._stream = _Stream(self, self._stream_error)
            self._answered(Answer(200, self._headers, b"", self._stream))

    def on_body(self, body: bytes) -> None:
        if self._stream is not None:
            self._stream.feed(body)
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self._status < 200:
            return  # for information only: the answer follows
        self._is_kept = self._stream is None and self._parser.should_keep_alive() and not self._ends_with_connection
        self._ends_with_connection = False
        if self._stream is not None:
            self._stream.end(None)
        else:
            self._answered(Answer(self._status, self._headers, b"".join(self._chunks), None))

    def _answered(self, answer: Answer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    # --- for the stream ----------------------------------------------------------------------------------------------

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()


class _Stream(AsyncGenerator[bytes, None]):
    """The body of an answer, as it comes. Not a generator function: closed before its first chunk was asked for, that
    would not close the connection."""

    def __init__(self, connection: HttpConnection, error_of: StreamError) -> None:
        self._connection = connection
        self._error_of = error_of
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._is_paused = self._is_ended = False
        self._error: Exception | None = None
        self._more: asyncio.Future[None] | None = None

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._buffered += len(chunk)
        if self._buffered > MOST_BUFFERED and not self._is_paused:
            self._is_paused = True
            self._connection.pause()
        self._wake()

    def end(self, error: Exception | None) -> None:
        if not self._is_ended:
            self._is_ended, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def asend(self, value: None) -> bytes:
        while not self._chunks:
            if self._is_ended:
                self._connection.close()
                if self._error is not None:
                    raise self._error_of(self._error) from self._error
                raise StopAsyncIteration
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        whole = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks, self._buffered = [], 0
        if self._is_paused:
            self._is_paused = False
            self._connection.resume()
        return whole

    async def athrow(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> bytes:
        await self.aclose()
        raise kind

    async def aclose(self) -> None:
        # Not returned to the pool: the server would continue to write into it.
        self.end(None)
        self._chunks.clear()
        self._connection.close()
