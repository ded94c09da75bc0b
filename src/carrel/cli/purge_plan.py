"""What `carrel purge` deletes: what is left in a cluster when Carrel has been uninstalled.

The list is read from the cluster each time, so a purge that was interrupted goes on with what is left. Only what is
Carrel's is on it: objects with Carrel's names or annotations, and definitions that its chart brought in. Other products
bring definitions of the same names (GpuClaim), and may have made KAI's namespace: without the chart's label they stay.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from carrel import manifests
from carrel.cli.checks.scheduler import CONTROLLER_LEASE, LEADER_SILENT
from carrel.cli.helm_release import HelmRelease, helm_release, marked_release
from carrel.cluster.configuration_record import APPLIED, CHANGES
from carrel.cluster.installation import other_installation
from carrel.dialects.carrel import PREFIXES, RULES
from carrel.dialects.hand_over_record import LABEL
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import NotFound, Selection
from carrel.kubernetes.objects import resources
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import CONFIG_MAPS, CRDS, LEASES, NAMESPACES, SECRETS, VOLUME_CLAIMS, Resource
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import instant
from carrel.resource_claims.objects import DEVICE_CLASSES, RESOURCE_CLAIMS
from carrel.resource_claims.shadows.shadow_words import SELECTED
from carrel.scheduling.scheduler_config import CPU_PROFILE, PROFILE

CHART_LABEL, CHART_NAME = "app.kubernetes.io/name", "carrel"
OF_CHART = f"{CHART_LABEL}={CHART_NAME}"
BY_CHART_ONLY = (
    (resources.CLUSTER_ROLE_BINDINGS, ""),
    (resources.CLUSTER_ROLES, ""),
    (resources.ROLE_BINDINGS, "kube-system"),
)
ELECTIONS = (CONTROLLER_LEASE, PROFILE, CPU_PROFILE)
"""Leases of leaders."""
OWN_SECRETS = ("carrel-secrets", "carrel-webhook-tls", "gpu-booking-webhook-tls", "carrel-bookings-elsewhere")
OWN_GROUP = ".carrel.dev"

_BY_KIND: dict[str, Resource[Any]] = {
    each.kind: each
    for each in (
        NAMESPACES,
        resources.CLUSTER_ROLES,
        resources.CLUSTER_ROLE_BINDINGS,
        resources.ROLES,
        resources.ROLE_BINDINGS,
        resources.SERVICE_ACCOUNTS,
        resources.PRIORITY_CLASSES,
        resources.VALIDATING_POLICIES,
        resources.VALIDATING_POLICY_BINDINGS,
        DEVICE_CLASSES,
    )
}


@dataclass(frozen=True, slots=True)
class StillInstalled:
    namespace: str
    release: HelmRelease
    why: str
    """What was found, in words."""


@dataclass(frozen=True, slots=True)
class Leftover:
    resource: Resource[Any]
    name: str
    namespace: str = ""
    holds: str = ""
    """What is lost with it, in words."""


@dataclass(frozen=True, slots=True)
class PurgePlan:
    leftovers: tuple[Leftover, ...]
    """In the order in which they are deleted: first what acts, last what people would miss."""
    kept: tuple[str, ...]
    """Definitions that may be another product's."""


class Purge:
    def __init__(self, client: Client, namespace: str, now: Callable[[], datetime]) -> None:
        """`now`: by the API server's clock."""
        self._client = client
        self._namespace = namespace
        self._now = now

    async def still_installed(self) -> StillInstalled | None:
        """What must be uninstalled first. Raises `ClusterError`."""
        other = await other_installation(self._client, self._namespace)
        if other and await self._get(NAMESPACES, other) is not None:
            why = f"Carrel is installed in the namespace {other}, and uses the same custom resource definitions"
            return StillInstalled(other, await marked_release(self._client), why)
        # In all namespaces: an installation without a marker, an older one for example, uses the definitions too.
        for resource in (resources.DEPLOYMENTS, resources.DAEMON_SETS, resources.PODS):
            found = (await self._client.list(resource, Selection(labels=OF_CHART))).items
            if found:
                where = min(each.metadata.namespace for each in found)
                there = [each.metadata for each in found if each.metadata.namespace == where]
                names = ", ".join(sorted(each.name for each in there))
                why = f"it is still in the namespace {where}: {resource.kind} {names}"
                return StillInstalled(where, helm_release(there[0].labels), why)
        return None

    async def why_leading(self) -> str:
        """Which component has led just now: one that somebody started by hand, or one that ended without the right to
        give its Lease back, because helm deletes roles too. Empty: none. Raises `ClusterError`."""
        for name in ELECTIONS:
            lease = await self._get(LEASES, name, self._namespace)
            if lease is not None and self._is_renewed(lease.get("spec") or {}):
                return f"{lease['spec']['holderIdentity']} leads as {name}, and has renewed its Lease within a minute"
        return ""

    def _is_renewed(self, spec: dict[str, Any]) -> bool:
        try:
            renewed = instant(spec.get("renewTime") or "", "Lease", "spec.renewTime")
        except Malformed:
            return False
        return bool(spec.get("holderIdentity")) and self._now() - renewed < LEADER_SILENT

    async def plan(self) -> PurgePlan:
        """Raises `ClusterError`."""
        acting = [each async for each in self._acting()]
        definitions, kept = await self._definitions()
        own = [each async for each in self._in_namespace()]
        return PurgePlan((*acting, *definitions, *own), kept)

    async def delete(self, each: Leftover) -> None:
        """Does nothing if it is gone. Raises `ClusterError`."""
        try:
            await self._client.delete(each.resource, each.name, each.namespace)
        except NotFound:
            return

    # --- what there is ------------------------------------------------------------------------------------------------

    async def _acting(self) -> AsyncIterator[Leftover]:
        """What helm deletes with the release: there only if it could not, or if helm did not install it."""
        seen = set[Leftover]()
        for name in manifests.CONFIGURATIONS:
            for kind, holds in (
                (resources.MUTATING_WEBHOOKS, "asks about new GPU pods"),
                (resources.VALIDATING_WEBHOOKS, "asks about allocations of claims"),
            ):
                found = await self._get(kind, name)
                if found is not None and self._namespace in _called_namespaces(found):
                    yield Leftover(kind, name, holds=holds)
        for manifest in (
            *manifests.policies(),
            *manifests.priority_classes(),
            *(each for each in manifests.dra() if each["kind"] in _BY_KIND),
            *manifests.rbac(),
        ):
            resource, name = _BY_KIND[manifest["kind"]], manifest["metadata"]["name"]
            where = manifest["metadata"].get("namespace", "")
            namespace = self._namespace if where == "carrel" else where
            found = await self._get(resource, name, namespace)
            if found is not None and (name.startswith("carrel-") or _is_of_chart(found)):
                seen.add(each := Leftover(resource, name, namespace))
                yield each
        # What only the chart has: the rights of kube-scheduler and of the hook that withdraws from the Nodes.
        for resource, where in BY_CHART_ONLY:
            try:
                labelled = (await self._client.list(resource, Selection(where, labels=OF_CHART))).items
            except NotFound:
                continue  # this API server has no such kind
            for each in (Leftover(resource, found.metadata.name, where) for found in labelled):
                if each not in seen:
                    yield each

    async def _definitions(self) -> tuple[list[Leftover], tuple[str, ...]]:
        ours, kept = [], []
        for manifest in manifests.crds():
            name, spec = manifest["metadata"]["name"], manifest["spec"]
            found = await self._get(CRDS, name)
            if found is None:
                continue
            if not name.endswith(OWN_GROUP) and not _is_of_chart(found):
                kept.append(name)
                continue
            version = next(each["name"] for each in spec["versions"] if each["storage"])
            kind: Resource[Object] = Resource(
                Object, spec["group"], version, spec["names"]["plural"], spec["names"]["kind"]
            )
            count = len((await self._client.list(kind)).items)
            ours.append(Leftover(CRDS, name, holds=f"{count} object{'s' * (count != 1)}"))
        return ours, tuple(kept)

    async def _in_namespace(self) -> AsyncIterator[Leftover]:
        here = Selection(self._namespace)
        for lease in (await self._client.list(LEASES, here)).items:
            keys = lease.metadata.annotations
            if lease.metadata.name in ELECTIONS or any(key.startswith(PREFIXES) for key in keys):
                holds = "by which rules pods were placed" if RULES in keys else "who holds a GPU"
                yield Leftover(LEASES, lease.metadata.name, self._namespace, holds)
        for record in (await self._client.list(CONFIG_MAPS, Selection(self._namespace, labels=LABEL))).items:
            yield Leftover(CONFIG_MAPS, record.metadata.name, self._namespace, "a hand-over to CPU under way")
        for name, what in ((CHANGES, "the rules that people changed"), (APPLIED, "the configuration in force")):
            if await self._get(CONFIG_MAPS, name, self._namespace) is not None:
                yield Leftover(CONFIG_MAPS, name, self._namespace, what)
        for shadow in await self._shadows():
            yield Leftover(RESOURCE_CLAIMS, shadow, self._namespace, "what is shown to schedulers")
        for name in OWN_SECRETS:
            if await self._get(SECRETS, name, self._namespace) is not None:
                yield Leftover(SECRETS, name, self._namespace, "keys")
        of_chart = Selection(self._namespace, labels=OF_CHART)
        for claim in (await self._client.list(VOLUME_CLAIMS, of_chart)).items:
            yield Leftover(VOLUME_CLAIMS, claim.metadata.name, self._namespace, "the database of the bookings")

    async def _shadows(self) -> list[str]:
        try:
            found = (await self._client.list(RESOURCE_CLAIMS, Selection(self._namespace, labels=SELECTED))).items
        except NotFound:
            return []  # this API server has no such kind
        return [each.metadata.name for each in found]

    async def _get(self, resource: Resource[Any], name: str, namespace: str = "") -> dict[str, Any] | None:
        try:
            return await self._client.get(resource, name, namespace)
        except NotFound:
            return None


def _is_of_chart(found: dict[str, Any]) -> bool:
    return (found["metadata"].get("labels") or {}).get(CHART_LABEL) == CHART_NAME


def _called_namespaces(configuration: dict[str, Any]) -> Iterator[str]:
    for webhook in configuration.get("webhooks") or ():
        yield (webhook["clientConfig"].get("service") or {}).get("namespace", "")
