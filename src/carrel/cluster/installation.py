"""A cluster has one Carrel: two would keep two sets of Leases, and promise a GPU twice.

The marker is the ClusterRole `carrel-installation` of `manifests/rbac.yaml`, with the namespace of the installation in
an annotation. It comes and goes with the roles of the components: helm creates it, refuses a second release because the
name is taken, and deletes it. Components only read it, so none needs the right to write it; and every ServiceAccount
may read it, also those of an installation whose roles somebody wrote by hand. Without a marker, nobody else is there.

A component looks before its first write, and then every minute: manifests that are applied without helm can overwrite
the marker, and then the older installation stops.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from carrel.dialects.carrel import INSTALLED_IN
from carrel.kubernetes.cluster import Cluster, ClusterError, Forbidden, NotFound
from carrel.kubernetes.objects.resources import CLUSTER_ROLES

log = logging.getLogger(__name__)

MARKER = "carrel-installation"
LOOK_S = 60.0
RETRY_S = 2.0
"""While the API server does not answer. Nothing can be written meanwhile."""
FIRST_LOOK_S = 5.0
"""So long a component waits before it serves. If the API server does not answer, its probes must be answered."""


def installed_in(marker: Mapping[str, Any]) -> str:
    """The namespace that the marker names; empty if it names none."""
    return str((marker.get("metadata") or {}).get("annotations", {}).get(INSTALLED_IN, ""))


async def other_installation(cluster: Cluster, namespace: str) -> str:
    """The namespace of another installation; empty if there is none. Raises `ClusterError`."""
    try:
        found = installed_in(await cluster.get(CLUSTER_ROLES, MARKER))
    except (NotFound, Forbidden):
        return ""
    return "" if found == namespace else found


def why_two(other: str, own: str) -> str:
    return (
        f"Carrel is installed in the namespace {other}, and this component would keep Leases of its own in {own}: each"
        f" GPU could be promised twice. If it belongs to that installation, give it --carrel-namespace {other}. To move"
        f" Carrel, uninstall it there first. If nothing of it is left there: carrel purge --carrel-namespace {other}"
    )


class OneInstallation:
    """What one component knows about other installations."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._tried = asyncio.Event()
        self._looked = asyncio.Event()
        self.why_not = ""
        """Why this component must not run."""

    async def require(self) -> None:
        """Waits until it has looked. Raises `Forbidden` if there is another installation."""
        await self._looked.wait()
        if self.why_not:
            raise Forbidden(403, "Forbidden", self.why_not)

    async def wait_first_look(self) -> None:
        """Or until it failed, or took too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._tried.wait()

    async def wait_other(self) -> str:
        """Waits until there is another installation: why this component must not run then."""
        while True:
            try:
                other = await other_installation(self._cluster, self._namespace)
            except ClusterError as error:
                log.debug("installation_unknown: %s", error)  # the watches say why the API server cannot be asked
                self._tried.set()
                await asyncio.sleep(RETRY_S)
                continue
            self.why_not = why_two(other, self._namespace) if other else ""
            self._looked.set()
            self._tried.set()
            if other:
                return self.why_not
            await asyncio.sleep(LOOK_S)
