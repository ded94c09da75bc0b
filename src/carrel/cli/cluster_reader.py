"""Reads the cluster once and rebuilds the ledger from it, by the rules that the scheduler reports there
(`cluster.placement_rules`). If that is not possible, the command ends with the reason."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime

from carrel.cli.no_answer import cluster_errors, same_question
from carrel.cluster.activity_words import ActivityWords
from carrel.cluster.gpu_activities import GpuActivities
from carrel.cluster.installation import other_installation
from carrel.cluster.placement_rules import LEASE, PlacementRules, rules_in_force
from carrel.cluster.pod_progress import is_waiting
from carrel.cluster.state import ClusterState
from carrel.command_errors import NOT_FOUND, REFUSED, USAGE, command_failed
from carrel.dialects.options import Unit
from carrel.dialects.seal import ADMITTED, Seal, SealedPod
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import NotFound
from carrel.kubernetes.config import Access
from carrel.kubernetes.http_transport import HttpTransport
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.gpu_activity import GpuActivity
from carrel.parsing import Malformed
from carrel.settings import ContextSettings, holders_counting


class ReadCluster(ClusterState):
    """The cluster as it was read, by the rules of its scheduler."""

    def __init__(self, client: Client, namespace: str, rules: PlacementRules) -> None:
        seal = _SealWithoutKey(()) if rules.needs_seal else None
        options = rules.options(namespace, holders_counting(rules.claims_of))
        super().__init__(client, replace(options, now=client.clock.now, seal=seal))
        self.rules = rules
        self.activities = GpuActivities(self)

    @property
    def activity_words(self) -> ActivityWords:
        return ActivityWords(self.options.zone, self.options.now())

    def use(self, activity: GpuActivity | None) -> str:
        """What a GPU is used for, in words; empty: nobody holds it."""
        return self.activity_words.line(activity) if activity is not None else ""

    def one_unit(self) -> Unit:
        """In which scheduler and agents count memory. If they differ, the command ends: its amounts would be wrong."""
        for node in sorted(self.ledger.nodes):
            why = self.cluster_ledger.why_other_unit(node)
            if why and not self.cluster_ledger.why_silent(node):
                raise command_failed("Agents and scheduler differ", f"{node}: {why}", "carrel doctor", REFUSED)
        return self.rules.memory_unit


class _SealWithoutKey(Seal):
    """Sees that a pod has no seal. Whether one is genuine, only Carrel's own processes see."""

    def is_on(self, pod: SealedPod, made: datetime) -> bool:
        return ADMITTED in pod.annotations


def read_cluster(settings: ContextSettings, access: Access, *, is_allowed: bool = True) -> ReadCluster:
    """The command ends with the reason if it cannot be read. Raises `Forbidden` without `is_allowed`."""
    with reading_errors(settings, access, is_allowed=is_allowed):
        return asyncio.run(_read(settings, access))


@contextmanager
def reading_errors(settings: ContextSettings, access: Access, *, is_allowed: bool = True) -> Iterator[None]:
    """If the cluster cannot be read in the block, the command ends with the reason."""
    denied = ("Not allowed to read the cluster", "kubectl auth can-i list pods -A")
    with cluster_errors(settings, denied, (f"No answer from {access.server}", same_question(settings)), is_allowed):
        try:
            yield
        except NotFound as error:
            why = f"{error}: Carrel is not installed there"
            raise command_failed("This cluster has no GpuNodeStatus", why, "kubectl get crd", NOT_FOUND) from None


async def _read(settings: ContextSettings, access: Access) -> ReadCluster:
    async with reading_cluster(settings, access) as carrel:
        return carrel


@asynccontextmanager
async def reading_cluster(settings: ContextSettings, access: Access) -> AsyncIterator[ReadCluster]:
    """The cluster as it is now. Within the block it can be written to, and followed. Raises `ClusterError`."""
    client = Client(HttpTransport(access))
    try:
        namespace = settings.carrel_namespace
        carrel = ReadCluster(client, namespace, await _rules(client, namespace))
        await carrel.informers.read_once()
        for pod in filter(is_waiting, carrel.pods.store):
            carrel.pod_facts.asked(pod)
        await carrel.gang_sizes.wait_looked_up()
        carrel.cluster_ledger.mark_silent_agents(carrel.options.now())
        yield carrel
    finally:
        await client.aclose()


async def _rules(client: Client, namespace: str) -> PlacementRules:
    """The command ends if they are not known."""
    if other := await other_installation(client, namespace):
        why = f"Carrel is installed in the namespace {other}, and reads no Leases of {namespace}."
        raise command_failed(f"No Carrel in {namespace}", why, f"the same with --carrel-namespace {other}", USAGE)
    hint = f"kubectl get pods,lease/{LEASE} --namespace {namespace}"
    try:
        rules = await rules_in_force(client, namespace)
    except Malformed as malformed:
        raise command_failed("The scheduler's settings cannot be read", str(malformed), hint, REFUSED) from None
    if rules is None:
        why = (
            f"The namespace {namespace} has no Lease {LEASE}, which Carrel's extender writes when it starts."
            " Without its settings, such as the unit of memory, the answer could be wrong."
        )
        raise command_failed("The scheduler's settings are not known", why, hint, REFUSED)
    return rules


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
