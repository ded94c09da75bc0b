"""Runs the webhook until a signal. Then it is no longer ready, answers for a moment longer, and ends."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from carrel.admission.asked_rules import write_rules
from carrel.admission.assembly import ERROR_FIELD, AdmissionWebhook
from carrel.admission.certificate_renewal import CertificateNames, CertificateRenewal, service_names
from carrel.admission.certificates import CertificatePair, UnreadableCertificate
from carrel.admission.options import admission_options
from carrel.admission.served_certificate import ServedCertificate
from carrel.admission.settings import SERVICE, WebhookSettings
from carrel.bookings.client import BookingAddress, BookingStatusClient
from carrel.cluster.configuration_record import Reads
from carrel.cluster.state import ClusterState
from carrel.configuration.contradictions import is_loopback
from carrel.configuration.current import CurrentConfiguration
from carrel.http.callers import CallerRules, known_callers_only
from carrel.http.serving import Address, serving
from carrel.http.tls_files import authority_of
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError, Conflict, Selection
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS
from carrel.kubernetes.reflector import Informers
from carrel.process import run_with_cluster
from carrel.settings import cluster_options, maias_unused_settings

log = logging.getLogger(__name__)

READS = Reads(("lab", "memory", "dialects", "nodes", "pods", "hubs", "tiers", "resourceClaims"))

CHECK_S = 60.0
"""How often certificates and rules are checked if no change is reported."""
RETRY_S = 2.0
"""After a failure; and how often files that others renew are read."""
LEAVE_AFTER_S = 5.0
"""API servers learn a moment later that this replica stops, and a pod whose review is not answered is refused. Whoever
calls it on this machine alone has no other replica to turn to."""
FINISH_S = 10
"""How long to wait for answers under way, and for API servers that keep an idle connection open."""


def run(settings: WebhookSettings) -> None:
    rules = settings.caller_rules("webhook", settings.bind_address, has_tls=True)
    run_with_cluster("webhook", settings, partial(_serve, settings, rules), READS)


async def _serve(
    settings: WebhookSettings, callers: CallerRules, client: Client, current: CurrentConfiguration, stop: asyncio.Event
) -> None:
    for name in maias_unused_settings():
        log.info("unused_setting name=%s why='Carrel counts free GPUs itself and asks nobody; leave it out'", name)
    has_claims = current.value.resource_claims.enabled
    served = ServedCertificate(authority_of(settings.client_ca)) if settings.client_ca else ServedCertificate()
    async with contextlib.AsyncExitStack() as stack:
        service = None
        if settings.api_url:
            where = BookingAddress(settings.api_url, settings.api_token)
            asking = BookingStatusClient(where, maia_gpus=lambda: current.value.dialects.maia_booking_gpus)
            service = await stack.enter_async_context(contextlib.aclosing(asking))
        options = cluster_options(current, settings.carrel_namespace, seal=settings.seal(), reads_makers=False)
        state = ClusterState(client, replace(options, now=client.clock.now))
        webhook = AdmissionWebhook(state, service, current.follow(admission_options))
        certificates = (
            load_files(settings, served)
            if settings.tls_folder
            else renew_certificates(client, settings, served, callers.secrets, has_claims=has_claims)
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                asked = keep_asked(client, settings.configuration, webhook.answers)
                watched = (state.informers.run(), state.informers.wait_first_copies(), state.watch_agents())
                working = (*watched, certificates, asked)
                running = [tasks.create_task(each) for each in working]
                await _serve_until(stop, webhook, served, settings, callers)
                for task in running:
                    task.cancel()
        except ExceptionGroup as several:
            raise several.exceptions[0] from several  # the first error; the others are cancellations
    log.info("stopped")


async def _serve_until(
    stop: asyncio.Event,
    webhook: AdmissionWebhook,
    served: ServedCertificate,
    settings: WebhookSettings,
    callers: CallerRules,
) -> None:
    stopped = asyncio.ensure_future(stop.wait())
    first = asyncio.ensure_future(served.wait_loaded())
    try:
        await asyncio.wait({stopped, first}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return
        app = known_callers_only(webhook.app(served), callers, ERROR_FIELD)
        address = Address(settings.bind_address, settings.port)
        async with serving(app, address, served.context, finish_s=FINISH_S) as url:
            log.info("listening url=%s namespace=%s", url, settings.carrel_namespace)
            await stop.wait()
            webhook.stopping.set()
            if not is_loopback(settings.bind_address):
                await asyncio.sleep(LEAVE_AFTER_S)
    finally:
        stopped.cancel()
        first.cancel()


async def renew_certificates(
    client: Client,
    settings: WebhookSettings,
    served: ServedCertificate,
    path_secrets: Sequence[bytes] = (),
    *,
    has_claims: bool = False,
) -> None:
    """After every change of the Secret or of the webhook configuration, and at regular intervals."""
    names = CertificateNames(
        settings.carrel_namespace,
        settings.tls_secret,
        settings.configuration,
        service_names(SERVICE, settings.carrel_namespace),
        path_secrets,
        (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS) if has_claims else (MUTATING_WEBHOOKS,),
    )
    # The API server checks them, by its own clock. It has answered before the time is asked for.
    renewal = CertificateRenewal(client, names, client.clock.now)
    informers = Informers(client)
    informers.watch(SECRETS, Selection(names.namespace, fields=f"metadata.name={names.secret}"))
    for kind in names.kinds:
        informers.watch(kind, Selection(fields=f"metadata.name={names.configuration}"))
    await informers.run_and_act(partial(_renew, renewal, served))


async def keep_asked(client: Client, configuration: str, answers: asyncio.Event) -> None:
    """From when the webhook `answers` on. Its certificate is trusted by then: it serves none before."""
    await answers.wait()
    informers = Informers(client)
    informers.watch(MUTATING_WEBHOOKS, Selection(fields=f"metadata.name={configuration}"))
    await informers.run_and_act(partial(_ask, client, configuration))


async def _renew(renewal: CertificateRenewal, served: ServedCertificate) -> float:
    """In how many seconds to look again."""
    try:
        _load(served, await renewal.renew())
    except (ClusterError, UnreadableCertificate) as error:
        log.warning("certificates_not_renewed why=%r", str(error))
        return RETRY_S
    return CHECK_S


async def _ask(client: Client, configuration: str) -> float:
    """In how many seconds to look again."""
    try:
        await write_rules(client, configuration)
    except Conflict:
        return RETRY_S  # another replica was faster
    except ClusterError as error:
        log.warning("rules_not_written name=%s why=%r", configuration, str(error))
        return RETRY_S
    return CHECK_S


async def load_files(settings: WebhookSettings, served: ServedCertificate) -> None:
    assert settings.tls_folder is not None
    certificate, key = settings.tls_folder / "tls.crt", settings.tls_folder / "tls.key"
    while True:
        try:
            _load(served, CertificatePair(certificate.read_bytes(), key.read_bytes()))
        except (OSError, UnreadableCertificate) as error:
            # While others renew them, one file may be new and the other old.
            log.warning("certificate_unreadable folder=%s why=%r", settings.tls_folder, str(error))
        await asyncio.sleep(RETRY_S)


def _load(served: ServedCertificate, pair: CertificatePair) -> None:
    if served.load(pair):
        log.info("certificate_loaded expires_at=%d", served.expires_at)
