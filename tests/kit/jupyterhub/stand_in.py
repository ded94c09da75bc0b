"""A server that answers the hub as a notebook's server does, also with `internal_ssl`.

Jupyter itself needs seconds of CPU time to start.
"""

import os
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_HEAD = do_GET  # noqa: N815 # as the library calls it


if __name__ == "__main__":
    place = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    server = ThreadingHTTPServer((place.hostname or "", place.port or 0), _Answers)
    if place.scheme == "https":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=os.environ["JUPYTERHUB_SSL_CLIENT_CA"])
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(os.environ["JUPYTERHUB_SSL_CERTFILE"], os.environ["JUPYTERHUB_SSL_KEYFILE"])
        # In the thread of the connection: one that says nothing keeps nobody else out.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()
