"""Tells the person in a notebook what Carrel wrote on the notebook's pod. For the image of the notebooks.

Reading order:

    notice    what the pod was told, from the files that Carrel's webhook mounts
    server    the same over HTTP, for the page: an extension of jupyter_server
    ipython   printed with the next cell: an extension of IPython

The page's side is `labextension/static/notices.js`.
"""

from typing import Any

__version__ = "0.1.0"


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "carrel_gpu_notebook"}]


def _load_jupyter_server_extension(server: Any) -> None:
    from carrel_gpu_notebook.server import add_handlers

    add_handlers(server.web_app)
