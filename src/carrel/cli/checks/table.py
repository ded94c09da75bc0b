"""All checks, in the order in which a pod meets what they look at. None of them ends the others."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from carrel.cli.checks.accounts import accounts, hub
from carrel.cli.checks.before_install import namespaces
from carrel.cli.checks.bookings import booking_service, database, mirrored_bookings
from carrel.cli.checks.components import clocks, components
from carrel.cli.checks.configuration import configuration, configuration_in_force, given_settings
from carrel.cli.checks.definitions import (
    admission,
    definitions,
    installation,
    maia,
    policies,
    priority_classes,
    webhook_configuration,
)
from carrel.cli.checks.finding import Check, Finding, Installation, fail, ok, warn
from carrel.cli.checks.nodes import agents, invariants, kubelets, memory_limits
from carrel.cli.checks.resource_claims import resource_claims
from carrel.cli.checks.runtime import runtime_class, visible_gpus
from carrel.cli.checks.scheduler import CONTROLLER_LEASE, controller, extender, scheduler
from carrel.cli.helm_release import marked_release
from carrel.dialects.options import SCHEDULER
from carrel.kubernetes.cluster import ClusterError, Forbidden
from carrel.kubernetes.objects.release import why_unsupported

API_SERVER = "API server"


async def _api_server(of: Installation) -> Sequence[Finding]:
    release = await of.client.release()
    if why := why_unsupported(release):
        return [fail(why, "upgrade the cluster")]
    return [ok(f"Kubernetes {release[0]}.{release[1]} answers")]


CHECKS = (
    Check(API_SERVER, _api_server),
    Check("installation", installation),
    Check("definitions", definitions),
    Check("policies", policies),
    Check("priority classes", priority_classes),
    Check("accounts", accounts, limit_s=180.0),
    Check("components", components),
    Check("clocks", clocks),
    Check("configuration", configuration),
    Check("settings", given_settings),
    Check("webhook", webhook_configuration),
    Check("admission", admission),
    Check(SCHEDULER, scheduler),
    Check("extender", extender),
    Check(CONTROLLER_LEASE, controller),
    Check("agents", agents),
    Check("memory limits", memory_limits),
    Check("kubelets", kubelets),
    Check("claims", resource_claims),
    Check("runtime class", runtime_class),
    Check("booking service", booking_service),
    Check("database", database),
    Check("mirrored bookings", mirrored_bookings),
    Check("invariants", invariants),
    Check("hub", hub),
    Check("MAIA", maia),
    Check("visible GPUs", visible_gpus, limit_s=600.0),
)


BEFORE_INSTALL = (
    Check(API_SERVER, _api_server),
    Check("namespaces", namespaces),
)
"""What there is to see in a cluster without Carrel."""


async def findings(of: Installation, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Raises `ClusterError` if the API server does not answer at all: then there is nothing to look at."""
    await of.client.release()
    of = replace(of, helm=await marked_release(of.client), configuration=await configuration_in_force(of))
    return [finding for check in checks for finding in await _found(of, check)]


async def _found(of: Installation, check: Check) -> list[Finding]:
    try:
        # In a task of its own: on Python 3.11.2 a task group that failed breaks the later timeouts of its task.
        found = await asyncio.wait_for(asyncio.ensure_future(check.look(of)), check.limit_s)
    except TimeoutError:
        found = [fail(f"no answer within {check.limit_s:.0f} s", "carrel doctor, once more")]
    except Exception as error:
        found = [_of_error(error)]
    return [replace(each, hop=each.hop or check.name, page=check.page) for each in found]


def _of_error(error: Exception) -> Finding:
    """Of several errors that come at once, the first counts."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Forbidden):
        return warn(f"you may not look: {error.message}", "ask an admin to run it")
    if isinstance(error, ClusterError):
        return fail(str(error), "carrel doctor, once more")
    text = f"the check itself failed: {type(error).__name__}: {error}"
    return fail(text, "tell Carrel's developers; the other checks are not concerned")
