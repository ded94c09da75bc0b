"""The settings of notifications."""

from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import parseaddr
from urllib.parse import urlsplit

from carrel.option_fields import setting
from carrel.parsing import Malformed
from carrel.parsing.addresses import is_address
from carrel.parsing.secret_settings import HOW_TO_MAKE_ONE


@dataclass(frozen=True)
class NotificationSettings:
    """The channels for notifications. Without any, none are sent."""

    smtp_url: str = setting(
        "", "Mail server: smtps://USER:PASSWORD@HOST, or smtp:// (STARTTLS), or smtp+plain://.", show_default=False
    )
    """Give a password in the variable: others can see options."""
    mail_from: str = setting("", "Sender of the mails.")
    webhook_url: str = setting("", "Address to which each notification is posted, signed.")
    webhook_secret: str = setting("", "Secret that the posts are signed with.", show_default=False)
    """So that the receiver can check the sender."""


def mistakes_in_notifications(settings: NotificationSettings) -> Iterable[str]:
    from carrel.bookings.notifications.channels import mail_server

    if settings.smtp_url:
        try:
            mail_server(settings.smtp_url)
        except Malformed as malformed:
            yield f"--smtp-url: {malformed}"
        if not is_address(parseaddr(settings.mail_from)[1]):
            yield "--smtp-url needs --mail-from, an e-mail address"
    if settings.webhook_url:
        if urlsplit(settings.webhook_url).scheme not in ("http", "https") or not urlsplit(settings.webhook_url).netloc:
            yield f"--webhook-url is {settings.webhook_url!r}; expected https://HOST/PATH"
        if not settings.webhook_secret:
            yield f"--webhook-url needs --webhook-secret; {HOW_TO_MAKE_ONE}"
