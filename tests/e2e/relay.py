"""Lets pods reach a program that listens on this machine's loopback address only."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address
from urllib.parse import urlsplit

CHUNK = 64 * 1024


@contextmanager
def relay(address: IPv4Address, url: str) -> Iterator[str]:
    """The URL on `address` that leads to `url`, as long as the block runs."""
    target = urlsplit(url)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), socket.create_connection((target.hostname or "", target.port or 0)) as beyond:
                back = threading.Thread(target=_pass_on, args=(beyond, self.request), daemon=True)
                back.start()
                _pass_on(self.request, beyond)
                back.join()

    with socketserver.ThreadingTCPServer((str(address), 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield target._replace(netloc=f"{address}:{server.server_address[1]}").geturl()
        finally:
            server.shutdown()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """Until the source has ended."""
    with suppress(OSError):
        while chunk := source.recv(CHUNK):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)
