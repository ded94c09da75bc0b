"""The ways by which people are told about their bookings: mail with a calendar entry, and a signed webhook."""

from carrel.adapters.letters.mail import Mail, MailServer, mail_server
from carrel.adapters.letters.webhook import Webhook

__all__ = ["Mail", "MailServer", "Webhook", "mail_server"]
