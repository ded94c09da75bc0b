"""A server that answers the hub as a notebook's server does. Jupyter itself needs seconds of CPU time to start."""

import os
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
    ThreadingHTTPServer((place.hostname or "", place.port or 0), _Answers).serve_forever()
