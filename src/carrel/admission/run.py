"""Runs the webhook until a signal comes: then it is no longer ready, answers for a moment longer, and ends."""

import asyncio
import contextlib
import logging
from datetime import timedelta

from carrel.admission.admission import Policy
from carrel.admission.assembly import Customs, Webhook
from carrel.admission.certificate_renewal import Certificates, Lifetimes, Names
from carrel.admission.certificates import Pair, Unreadable
from carrel.admission.settings import HideFrom, Mode, WebhookSettings, WhenFull, names_in
from carrel.admission.x509 import Shown, X509Notary
from carrel.bookings.client.http_client import BookingAddress, BookingClient
from carrel.http.serving import Address, serving
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError, Selection
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS, SECRETS
from carrel.leases.cluster_state import utc_now
from carrel.settings import serve_door

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""How often certificates are looked after, should nobody have told us that something changed."""
RETRY_S = 2.0
"""When something could not be had; and how often files that others renew are looked at."""
FINISH_S = 10
"""How long answers under way, and API servers that keep a silent connection open, are waited for."""


def run(settings: WebhookSettings) -> None:
    serve_door("webhook", settings, lambda client, stop: _serve(client, settings, stop))


async def _serve(client: Client, settings: WebhookSettings, stop: asyncio.Event) -> None:
    shown = Shown()
    async with contextlib.AsyncExitStack() as until:
        service = None
        if settings.api_url:
            where = BookingAddress(settings.api_url, settings.gpu_stats_url, settings.api_token)
            service = await until.enter_async_context(contextlib.aclosing(BookingClient(where)))
        webhook = Webhook(client, service, customs_of(settings))
        keep = show_files(settings, shown) if settings.tls_folder else keep_certificates(client, settings, shown)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(webhook.informers.run()), tasks.create_task(keep)]
                await _serve_until(stop, webhook, shown, settings)
                for task in running:
                    task.cancel()
        except ExceptionGroup as several:
            raise several.exceptions[0] from several  # who broke first; the others were only stopped
    log.info("left")


async def _serve_until(stop: asyncio.Event, webhook: Webhook, shown: Shown, settings: WebhookSettings) -> None:
    stopped = asyncio.ensure_future(stop.wait())
    first = asyncio.ensure_future(shown.wait_something())
    try:
        await asyncio.wait({stopped, first}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return
        app = webhook.app(lambda: shown.expires_at)
        address = Address(settings.bind_address, settings.port)
        async with serving(app, address, shown.context, finish_s=FINISH_S) as url:
            log.info("listening url=%s namespace=%s", url, settings.carrel_namespace)
            await stop.wait()
            webhook.is_leaving = True
            await asyncio.sleep(settings.leave_after)
    finally:
        stopped.cancel()
        first.cancel()


async def keep_certificates(client: Client, settings: WebhookSettings, shown: Shown) -> None:
    """Whenever somebody changed the Secret or the configuration, and every so often."""
    names = Names(settings.carrel_namespace, settings.tls_secret, settings.configuration, settings.served_names())
    lifetimes = Lifetimes(certificate=timedelta(days=settings.certificate_days))
    certificates = Certificates(client, X509Notary(), names, utc_now, lifetimes)
    changed, informers = asyncio.Event(), Informers(client)
    informers.watch(SECRETS, Selection(names.namespace, fields=f"metadata.name={names.secret}")).on_change(
        lambda old, new: changed.set()
    )
    informers.watch(MUTATING_WEBHOOKS, Selection(fields=f"metadata.name={names.configuration}")).on_change(
        lambda old, new: changed.set()
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informers.run())
        while True:
            changed.clear()
            wait_s = LOOK_S if await _kept(certificates, shown) else RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await changed.wait()


async def _kept(certificates: Certificates, shown: Shown) -> bool:
    try:
        _show(shown, await certificates.keep())
    except (ClusterError, Unreadable) as error:
        log.warning("certificates_not_kept why=%r", str(error))
        return False
    return True


async def show_files(settings: WebhookSettings, shown: Shown) -> None:
    assert settings.tls_folder is not None
    certificate, key = settings.tls_folder / "tls.crt", settings.tls_folder / "tls.key"
    while True:
        try:
            _show(shown, Pair(certificate.read_bytes(), key.read_bytes()))
        except (OSError, Unreadable) as error:
            # While others renew them, one file may be new and the other old.
            log.warning("certificate_unreadable folder=%s why=%r", settings.tls_folder, str(error))
        await asyncio.sleep(RETRY_S)


def _show(shown: Shown, pair: Pair) -> None:
    if shown.show(pair):
        log.info("certificate_shown expires_at=%d", shown.expires_at)


def customs_of(settings: WebhookSettings) -> Customs:
    return Customs(
        settings.carrel_namespace,
        settings.owner_annotation,
        frozenset(names_in(settings.trusted)),
        frozenset(names_in(settings.spawners)),
        settings.username_prefix,
        Policy(
            strict=settings.strict,
            waits_when_full=settings.when_full is WhenFull.WAIT,
            coexist=settings.mode is Mode.COEXIST,
            hides_from_everybody=settings.hide_cards_from is HideFrom.ALL_PODS,
            scheduler=settings.scheduler,
        ),
        settings.seal(),
    )
