"""`GET carrel/notice`, for the page: `{"notice": "…", "seconds_left": 118.2, "link": {"label": "Book", "url": "…"}}`.

The time that is left is told, not the instant: the clock of the person's machine may be wrong.
"""

from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from carrel_gpu_notebook.notice import read_notice


class NoticeHandler(APIHandler):
    auth_resource = "carrel"
    _track_activity = False  # a page that only asks does not keep its server from being culled

    @web.authenticated
    @authorized
    async def get(self) -> None:
        notice = read_notice()
        left = notice.seconds_left(datetime.now(timezone.utc))
        link = asdict(notice.link) if notice.link else None
        self.finish({"notice": notice.sentence, "seconds_left": left, "link": link})


def add_handlers(app: Any) -> None:
    app.add_handlers(".*$", [(url_path_join(app.settings["base_url"], "carrel", "notice"), NoticeHandler)])
