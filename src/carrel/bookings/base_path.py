"""Serves the app under a path of another site's host, as a service of a JupyterHub is: `/services/carrel`.

The app itself does not know where it is. Of a request under the path, the path is taken off; in its answer, `Location`
gets it. Links in pages get it from the templates (`pages.layout`). A request without the path is answered too: probes,
and callers within the cluster, do not come through the other site's proxy.
"""

from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote

from starlette.datastructures import MutableHeaders

from carrel.http.asgi import AsgiApp, Receive, Scope, Send


class UnderBasePath:
    def __init__(self, app: AsgiApp, base_path: str) -> None:
        """`base_path` begins with a slash and does not end with one."""
        self._app = app
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == self._base_path or path.startswith(f"{self._base_path}/")):
            await self._app(scope, receive, send)
            return

        async def send_with_path(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                if headers.get("location", "").startswith("/"):
                    headers["location"] = self._base_path + headers["location"]
                message = {**message, "headers": headers.raw}
            await send(message)

        inner = path[len(self._base_path) :] or "/"
        await self._app({**scope, "path": inner, "raw_path": quote(inner).encode()}, receive, send_with_path)
