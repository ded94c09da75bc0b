"""The settings of notifications that are not in the configuration, because they are secrets."""

from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import parseaddr

from carrel.configuration.schema import Notifications
from carrel.option_fields import secret
from carrel.parsing import Malformed
from carrel.parsing.addresses import is_address
from carrel.parsing.secret_settings import HOW_TO_MAKE_ONE


@dataclass(frozen=True)
class NotificationSettings:
    """The channels for notifications. Without any, none are sent."""

    smtp_url: str = secret("Mail server: smtps://USER:PASSWORD@HOST, or smtp:// (STARTTLS), or smtp+plain://.")
    """It has a password."""
    webhook_secret: str = secret("Secret that posts to notifications.webhookUrl are signed with.")
    """So that the receiver can check the sender."""
    matrix_token: str = secret("Access token of the user that writes to people at notifications.matrixUrl.")
    """It can do everything that this user can."""


def mistakes_in_notifications(settings: NotificationSettings, notifications: Notifications) -> Iterable[str]:
    from carrel.bookings.notifications.mail import mail_server

    if settings.smtp_url:
        try:
            mail_server(settings.smtp_url)
        except Malformed as malformed:
            yield f"CARREL_SMTP_URL: {malformed}"
        if not is_address(parseaddr(notifications.mail_from)[1]):
            yield "CARREL_SMTP_URL needs notifications.mailFrom in the configuration, an e-mail address"
    if notifications.webhook_url and not settings.webhook_secret:
        yield f"notifications.webhookUrl needs CARREL_WEBHOOK_SECRET; {HOW_TO_MAKE_ONE}"
    if notifications.matrix_url and not settings.matrix_token:
        yield "notifications.matrixUrl needs CARREL_MATRIX_TOKEN, an access token of its user"
