"""Reads the cluster once and rebuilds the ledger from it. If that is not possible, the command ends with the reason."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from carrel.cli.options import ClusterQuerySettings
from carrel.command_errors import FORBIDDEN, NOT_FOUND, UNAVAILABLE, USAGE, command_failed
from carrel.dialects.dra import DraDriver
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError, Forbidden, NotFound
from carrel.kubernetes.config import Access
from carrel.kubernetes.http_transport import HttpTransport
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import RESOURCE_SLICES, VALIDATING_WEBHOOKS
from carrel.leases.cluster_state import ClusterOptions, ClusterState
from carrel.leases.pod_progress import is_waiting
from carrel.ledger.tiers import DEFAULT_TIER_POLICY, TierPolicy
from carrel.manifests import CONFIGURATIONS


def read_cluster(
    settings: ClusterQuerySettings, access: Access, tier_policy: TierPolicy = DEFAULT_TIER_POLICY
) -> ClusterState:
    try:
        return read_allowed_cluster(settings, access, tier_policy)
    except Forbidden as error:
        raise command_failed(
            "Not allowed to read the cluster", str(error), "kubectl auth can-i list pods -A", FORBIDDEN
        ) from None


def read_allowed_cluster(
    settings: ClusterQuerySettings, access: Access, tier_policy: TierPolicy = DEFAULT_TIER_POLICY
) -> ClusterState:
    """Raises `Forbidden` if we may not read it. After any other failure the command ends."""
    try:
        return asyncio.run(_read(settings, access, tier_policy))
    except Forbidden:
        raise
    except NotFound as error:
        why = f"{error}: Carrel is not installed there"
        raise command_failed("This cluster has no GpuNodeStatus", why, "kubectl get crd", NOT_FOUND) from None
    except ClusterError as error:
        raise command_failed(
            f"No answer from {access.server}", _why_unanswered(error, access), _same_question(settings), UNAVAILABLE
        ) from None


def _why_unanswered(error: ClusterError, access: Access) -> str:
    """In the words of the system, where no connection was made."""
    cause = error.__cause__
    if error.reason != "NoConnection" or not isinstance(cause, OSError):
        return str(error)
    if cause.errno == errno.ECONNREFUSED:
        return f"Nothing listens at {access.server}"
    return f"No connection to {access.server}: {cause.strerror or error}"


def _same_question(settings: ClusterQuerySettings) -> str:
    """A command of kubectl that asks the same API server."""
    given = {"--server": settings.server, "--kubeconfig": settings.kubeconfig, "--context": settings.context}
    options = [f"{option} {value}" for option, value in given.items() if value]
    return " ".join(["kubectl", *options, "cluster-info"])


async def _read(settings: ClusterQuerySettings, access: Access, tier_policy: TierPolicy) -> ClusterState:
    async with reading_cluster(settings, access, tier_policy) as carrel:
        return carrel


async def _dra_driver(client: Client) -> DraDriver | None:
    """Whose ResourceClaims the installation counts, as far as the reader may know it; None: none."""
    for name in CONFIGURATIONS:
        try:
            gate = str(await client.get(VALIDATING_WEBHOOKS, name))
            return next((driver for driver in DraDriver if f"'{driver.value}'" in gate), None)
        except ClusterError:
            continue  # there is none; or the reader may not see it, but perhaps what agents offer
    try:
        slices = (await client.list(RESOURCE_SLICES)).items
    except ClusterError:
        return None
    return DraDriver.CARREL if any(each.spec.driver == DraDriver.CARREL.value for each in slices) else None


@asynccontextmanager
async def reading_cluster(
    settings: ClusterQuerySettings, access: Access, tier_policy: TierPolicy = DEFAULT_TIER_POLICY
) -> AsyncIterator[ClusterState]:
    """The cluster as it is now. Within the block it can be written to. Raises `ClusterError`."""
    client = Client(HttpTransport(access))
    try:
        # A command that reads once cannot see whether more pods of a gang come.
        dialect_options = replace(settings.dialect_options(), gang_settle_s=0.0)
        now = client.clock.now
        driver = await _dra_driver(client)
        options = ClusterOptions(
            settings.carrel_namespace,
            dialect_options,
            tier_policy=tier_policy,
            now=now,
            dra=driver is not None,
            dra_driver=driver or DraDriver.CARREL,
        )
        carrel = ClusterState(client, options)
        await carrel.informers.read_once()
        for pod in filter(is_waiting, carrel.pods.store):
            carrel.requested_by(pod)
        await carrel.gang_sizes.wait_looked_up()
        carrel.cluster_ledger.mark_silent_agents(carrel.options.now())
        yield carrel
    finally:
        await client.aclose()


def pod_name(argument: str) -> str:
    """From `pod/NAME` or `NAME`. Empty if the argument is."""
    kind, slash, name = argument.rpartition("/")
    if slash and (kind not in ("pod", "pods", "po") or not name):
        why = "Write pod/NAME or NAME."
        raise command_failed(f"{argument!r} is not a pod", why, "carrel why pod/train-0 -n lab", USAGE)
    return name


def find_pod(carrel: ClusterState, namespace: str, name: str) -> Pod:
    pod = carrel.pods.store.get(name, namespace)
    if pod is None:
        elsewhere = sorted(full_name(other) for other in carrel.pods.store if other.metadata.name == name)
        hint = f" There is {', '.join(elsewhere)}." if elsewhere else ""
        why = f"Namespace {namespace!r} has no pod with this name.{hint}"
        raise command_failed(f"No pod {namespace}/{name}", why, f"kubectl get pods -n {namespace}", NOT_FOUND)
    return pod


def full_name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
