"""What the address of a server leads to while its pod changes: a page that says so, and loads again by itself.

For these seconds the proxy sends what is meant for the server to the hub, which answers it here, before its own
handlers: those would lead people to a server that does not answer, or say that it is down. The proxy asks the hub for
its page of errors too (`/hub/error/503?url=…`), for what comes before the route has been changed.

Programs are answered with 502. With 503, JupyterLab would say that the server does not run, and ask for a restart.
"""

from typing import Any, ClassVar

from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher, Rule
from tornado.web import Application, RequestHandler

RELOAD_S = 2
ERROR_PAGE = "/error/503"
"""How the path ends at which the proxy asks for the page."""
TEXT = (
    "Your GPU was given back. Your server starts again without one, at this address; that takes some seconds.",
    "Your files are where they were. Notebooks have to be run again: kernels have ended with the pod.",
)
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="{reload_s}">
<title>Your server is moving</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 36rem; margin: 15vh auto; padding: 0 1rem; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #eee; }} }}
</style>
</head>
<body>
<h1>Your server is moving</h1>
<p>{text}</p>
<p role="status">This page loads again by itself. There is nothing to do, and nothing to restart.</p>
</body>
</html>
"""


class MovingServers:
    """Those of one hub, by the path under which they are served."""

    _of_hubs: ClassVar[dict[Application, "MovingServers"]] = {}

    def __init__(self) -> None:
        self._paths: set[str] = set()

    @classmethod
    def of(cls, hub: Application) -> "MovingServers":
        found = cls._of_hubs.get(hub)
        if found is None:
            found = cls._of_hubs[hub] = cls()
            hub.default_router.rules.insert(0, Rule(_IsMoving(found), _MovingPage))
        return found

    def add(self, path: str) -> None:
        self._paths.add(path)

    def remove(self, path: str) -> None:
        self._paths.discard(path)

    def has(self, request: HTTPServerRequest) -> bool:
        """Whether the request is for one of them, or about one that did not answer."""
        asked = request.path
        if asked.endswith(ERROR_PAGE):
            asked = (request.query_arguments.get("url") or [b""])[0].decode(errors="replace")
        return any(asked.startswith(path) or asked == path.rstrip("/") for path in self._paths)


class _IsMoving(Matcher):
    def __init__(self, servers: MovingServers) -> None:
        self._servers = servers

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        return {} if self._servers.has(request) else None


class _MovingPage(RequestHandler):
    """For every method: whoever asks, and for what, the server is not there."""

    def check_xsrf_cookie(self) -> None:
        """Nothing is changed here."""

    def prepare(self) -> None:
        self.set_header("Retry-After", str(RELOAD_S))
        self.set_header("Cache-Control", "no-store")
        is_page = self.request.path.endswith(ERROR_PAGE) or "text/html" in self.request.headers.get("Accept", "")
        if self.request.method == "GET" and is_page:
            self.set_status(503)
            self.finish(PAGE.format(reload_s=RELOAD_S, text="</p>\n<p>".join(TEXT)))
        else:
            self.set_status(502)
            self.finish({"message": TEXT[0]})
