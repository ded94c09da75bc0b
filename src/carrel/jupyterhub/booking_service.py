"""Asks the booking service what a person may start now, with the token of the hub's ServiceAccount."""

import json
from pathlib import Path
from urllib.parse import urlencode

from tornado.httpclient import AsyncHTTPClient

from carrel.jupyterhub.startable import StartableAnswer, read_startable

TIMEOUT_S = 5.0
"""The person waits for the page."""


class BookingServiceAway(Exception):
    """It does not answer, or its answer cannot be used. The message says why."""


async def ask_startable(url: str, token_file: str, user: str) -> StartableAnswer:
    """Raises `BookingServiceAway`."""
    asked = f"{url.rstrip('/')}/api/v1/startable?{urlencode({'user': user})}"
    try:
        token = Path(token_file).read_text().strip()  # noqa: ASYNC240 # a small file, which the kubelet renews
        headers = {"Authorization": f"Bearer {token}"}
        answer = await AsyncHTTPClient().fetch(asked, headers=headers, request_timeout=TIMEOUT_S)
        return read_startable(json.loads(answer.body))
    except (OSError, ValueError) as error:
        raise BookingServiceAway(f"The booking service at {url} cannot be asked about {user!r}: {error}") from error
    except Exception as error:  # tornado's errors have no common class
        raise BookingServiceAway(f"The booking service at {url} does not answer: {error}") from error
