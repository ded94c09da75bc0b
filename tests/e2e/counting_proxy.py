"""Stands between a program and the API server, and counts what the program writes: it can be killed after each write.

The killed program never gets the answer; whether it would have lived to read it makes no difference.
"""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from testbed.control_plane import ApiServer

PASSED_ON = ("Content-Type", "Accept")
CHUNK = 64 * 1024


class CountingProxy:
    """`on_write` is called after each write that took effect, with its number and what it was."""

    def __init__(self, api: ApiServer, is_counted: Callable[[str, str], bool]) -> None:
        self._api = api
        self._is_counted = is_counted
        self._trust = ssl.create_default_context(cafile=str(api.authority.certificate))
        self._lock = threading.Lock()
        self.writes: list[str] = []
        self.on_write: Callable[[int], None] = lambda number: None
        self.url = ""

    def forward(self, caller: BaseHTTPRequestHandler) -> None:
        body = caller.rfile.read(int(caller.headers.get("Content-Length") or 0))
        address = urlsplit(self._api.url)
        connection = HTTPSConnection(address.hostname or "", address.port, context=self._trust)
        headers = {key: caller.headers[key] for key in PASSED_ON if key in caller.headers}
        try:
            connection.request(
                caller.command, caller.path, body, {**headers, "Authorization": f"Bearer {self._api.token}"}
            )
            answer = connection.getresponse()
            if caller.command != "GET" and answer.status < 300 and self._is_counted(caller.command, caller.path):
                with self._lock:
                    self.writes.append(f"{caller.command} {caller.path}")
                    self.on_write(len(self.writes))
            caller.send_response(answer.status)
            caller.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
            caller.send_header("Connection", "close")  # so the end of the answer needs no other mark
            caller.end_headers()
            while chunk := answer.read1(CHUNK):
                caller.wfile.write(chunk)
                caller.wfile.flush()
        except (OSError, HTTPException):
            pass  # whoever asked, or was asked, is gone
        finally:
            connection.close()


@contextmanager
def counting_proxy(api: ApiServer, is_counted: Callable[[str, str], bool]) -> Iterator[CountingProxy]:
    proxy = CountingProxy(api, is_counted)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            proxy.forward(self)
            self.close_connection = True

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: object) -> None:
            """What is asked is in the log of whoever asks."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
