"""How people are told about their bookings: the settings, the task that does it, and the call by which the controller
says that a pod lost its card."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from carrel.parsing import Malformed

if TYPE_CHECKING:
    import aiohttp

    from carrel.bookings.notifications.interface import Channel
    from carrel.bookings.notifications.notifier import Notifier

log = logging.getLogger(__name__)

ROUND_S = 5.0
SHORTEST_SECRET = 16


@dataclass(frozen=True)
class NotificationSettings:
    """By which ways people are told. Without any, nobody is."""

    smtp_url: Annotated[
        str,
        typer.Option(
            help="Mail server: smtps://USER:PASSWORD@HOST, or smtp:// (STARTTLS), or smtp+plain://.",
            envvar="CARREL_SMTP_URL",
            show_default=False,
        ),
    ] = ""
    """A password belongs in the variable: others can see options."""
    mail_from: Annotated[str, typer.Option(help="Who the mails are from.", envvar="CARREL_MAIL_FROM")] = ""
    webhook_url: Annotated[
        str, typer.Option(help="Where each letter is posted, signed.", envvar="CARREL_WEBHOOK_URL")
    ] = ""
    webhook_secret: Annotated[
        str,
        typer.Option(help="What the posts are signed with.", envvar="CARREL_WEBHOOK_SECRET", show_default=False),
    ] = ""
    """So that who gets them can know who sent them."""


def mistakes_in_notifications(settings: NotificationSettings) -> Iterable[str]:
    from carrel.bookings.notifications.smtp import mail_server

    if settings.smtp_url:
        try:
            mail_server(settings.smtp_url)
        except Malformed as malformed:
            yield f"--smtp-url: {malformed}"
        if "@" not in settings.mail_from:
            yield "--smtp-url needs --mail-from, an address"
    if settings.webhook_url:
        if urlsplit(settings.webhook_url).scheme not in ("http", "https") or not urlsplit(settings.webhook_url).netloc:
            yield f"--webhook-url is {settings.webhook_url!r}; expected https://HOST/PATH"
        if len(settings.webhook_secret) < SHORTEST_SECRET:
            yield f"--webhook-url needs --webhook-secret, of at least {SHORTEST_SECRET} characters"


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """What letters are written with."""

    http: "aiohttp.ClientSession"
    zone: tzinfo
    now: Callable[[], datetime]
    link: str


def channels_of(settings: NotificationSettings, stationery: DeliveryContext) -> Mapping[str, "Channel"]:
    """Of settings in which there are no mistakes."""
    from carrel.bookings.notifications.smtp import MailChannel, mail_server
    from carrel.bookings.notifications.webhook import WebhookChannel

    ways: dict[str, Channel] = {}
    if settings.smtp_url:
        server = mail_server(settings.smtp_url)
        ways["mail"] = MailChannel(server, settings.mail_from, stationery.zone, stationery.link)
    if settings.webhook_url:
        secret, zone = settings.webhook_secret, stationery.zone
        ways["webhook"] = WebhookChannel(settings.webhook_url, secret, stationery.http, zone, stationery.now)
    return ways


async def keep_sending(notifier: "Notifier") -> None:
    """For ever. Whatever goes wrong is tried again, and never stops the service."""
    while True:
        try:
            while await notifier.round():
                pass
        except Exception as error:
            log.warning("letters_failed: %s: %s", type(error).__name__, error)
        await asyncio.sleep(ROUND_S)
