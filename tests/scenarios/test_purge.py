"""`carrel purge` deletes what is Carrel's and nothing else, never while it runs, and goes on where it was stopped."""

from typing import Any

import pytest

from carrel.cli.purge_plan import Purge
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import EVERYTHING, MergePatch, NotFound, OutcomeUnknown, Selection
from carrel.kubernetes.objects.resources import (
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    LEASES,
    MUTATING_WEBHOOKS,
    PODS,
    SECRETS,
    VOLUME_CLAIMS,
    Resource,
)
from carrel.kubernetes.transport import ApiRequest, ResponseLike
from carrel.manifests import webhooks
from carrel.resource_claims.objects import RESOURCE_CLAIMS
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab

Json = dict[str, Any]
CHART = {"app.kubernetes.io/name": "carrel"}
GPU = {"nvidia.com/gpu": "1"}
CLAIM_SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


async def make(lab: Lab, resource: Resource[Any], name: str, labels: Json | None = None, **more: Any) -> None:
    metadata = {"name": name, "labels": labels or {}}
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **more}
    await lab.client.create(resource, body, "carrel")


async def uninstalled(lab: Lab) -> None:
    """What helm leaves; and things of others in the same namespace."""
    async with lab.replica() as replica:
        assert await replica.bind(await lab.pod("train", limits=GPU), "n1") is None
    await lab.client.patch(CRDS, "gpuclaims.gpu.scheduling", MergePatch({"metadata": {"labels": CHART}}))
    await make(lab, SECRETS, "carrel-secrets", CHART)
    await make(lab, SECRETS, "carrel-webhook-tls")
    await make(lab, SECRETS, "theirs")
    await make(lab, CONFIG_MAPS, "handover-0", {"carrel.dev/handover": "bare"})
    await make(lab, CONFIG_MAPS, "theirs")
    released = {"holderIdentity": "", "renewTime": "2026-11-16T12:00:00.000000Z"}
    await make(lab, LEASES, "carrel-controller", spec=released)
    await make(lab, LEASES, "theirs")
    await make(lab, VOLUME_CLAIMS, "carrel-booking", CHART, spec=CLAIM_SPEC)
    await make(lab, VOLUME_CLAIMS, "theirs", spec=CLAIM_SPEC)
    asked = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.carrel.dev"}}]}}
    await make(lab, RESOURCE_CLAIMS, "held-0", {"carrel.dev/shadow": "true"}, spec=asked)
    await make(lab, RESOURCE_CLAIMS, "theirs", spec=asked)


def purge_of(lab: Lab, client: Client | None = None) -> Purge:
    return Purge(client or lab.client, "carrel", lab.clock)


async def left(lab: Lab) -> set[str]:
    found = set()
    for resource in (CRDS, SECRETS, CONFIG_MAPS, LEASES, VOLUME_CLAIMS, RESOURCE_CLAIMS):
        here = Selection("carrel") if resource.namespaced else EVERYTHING
        found |= {f"{resource.kind} {each.metadata.name}" for each in (await lab.client.list(resource, here)).items}
    return found


THEIRS = {
    "CustomResourceDefinition gpunodestatuses.gpu.scheduling",
    "Secret theirs",
    "ConfigMap theirs",
    "Lease theirs",
    "PersistentVolumeClaim theirs",
    "ResourceClaim theirs",
}
"""Without the chart's label, the definition may be that of another product."""


async def test_all_that_is_carrels_is_deleted_and_nothing_else() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab:
        await uninstalled(lab)
        plan = await purge_of(lab).plan()
        assert plan.kept == ("gpunodestatuses.gpu.scheduling",)
        assert [(each.resource.kind, each.name, each.holds) for each in plan.leftovers] == [
            ("CustomResourceDefinition", "gpuclaims.gpu.scheduling", "0 objects"),
            ("CustomResourceDefinition", "bookings.carrel.dev", "1 object"),
            ("Lease", "carrel-controller", "who holds a GPU"),
            ("Lease", "gpu-n1-0", "who holds a GPU"),
            ("ConfigMap", "handover-0", "a hand-over to CPU under way"),
            ("ResourceClaim", "held-0", "what is shown to schedulers"),
            ("Secret", "carrel-secrets", "keys"),
            ("Secret", "carrel-webhook-tls", "keys"),
            ("PersistentVolumeClaim", "carrel-booking", "the database of the bookings"),
        ]
        for each in plan.leftovers:
            await purge_of(lab).delete(each)
        assert await left(lab) == THEIRS
        assert await lab.client.get(PODS, "train", "lab")
        assert (await purge_of(lab).plan()).leftovers == ()


class StoppedAfter:
    """Lets so many deletions through; the answer of the last one is lost."""

    def __init__(self, lab: Lab, deletions: int) -> None:
        self._api, self._left = lab.api, deletions

    async def send(self, request: ApiRequest) -> ResponseLike:
        answer = await self._api.send(request)
        if request.method == "DELETE":
            self._left -= 1
            if self._left < 0:
                raise OutcomeUnknown(0, "Lost", "the process was killed")
        return answer

    async def aclose(self) -> None:
        """The lab closes the API."""


@pytest.mark.parametrize("deletions", range(8))
async def test_a_purge_that_was_stopped_goes_on_with_what_is_left(deletions: int) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab:
        await uninstalled(lab)
        stopped = purge_of(lab, Client(StoppedAfter(lab, deletions)))
        with pytest.raises(OutcomeUnknown):
            for each in (await stopped.plan()).leftovers:
                await stopped.delete(each)
        again = purge_of(lab)
        for each in (await again.plan()).leftovers:
            await again.delete(each)
        assert await left(lab) == THEIRS


async def test_it_refuses_while_something_of_carrel_is_there_or_leads() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab:
        await uninstalled(lab)
        assert await purge_of(lab).still_installed() is None
        container = {"name": "main", "image": "none"}
        template = {"metadata": {"labels": CHART}, "spec": {"containers": [container]}}
        spec = {"replicas": 0, "selector": {"matchLabels": CHART}, "template": template}
        labels = {**CHART, "app.kubernetes.io/instance": "gpus", "helm.sh/chart": "carrel-0.1.0"}
        await make(lab, DEPLOYMENTS, "carrel-webhook", labels, spec=spec)
        there = await purge_of(lab).still_installed()
        assert there is not None
        assert there.why == "it is still in the namespace carrel: Deployment carrel-webhook"
        assert there.release.uninstall(there.namespace) == "helm uninstall gpus --namespace carrel"
        await lab.client.delete(DEPLOYMENTS, "carrel-webhook", "carrel")
        now = f"{lab.clock():%Y-%m-%dT%H:%M:%S.000000Z}"
        leads = MergePatch({"spec": {"holderIdentity": "by-hand", "renewTime": now}})
        await lab.client.patch(LEASES, "carrel-controller", leads, "carrel")
        assert "by-hand leads as carrel-controller" in await purge_of(lab).why_leading()


async def test_a_webhook_configuration_is_deleted_if_it_calls_this_namespace() -> None:
    """As where the namespace was deleted instead of the release."""
    async with a_lab([]) as lab:
        (ours,) = webhooks(for_embedded_api=True)
        await lab.client.create(MUTATING_WEBHOOKS, ours)
        theirs = {**ours, "metadata": {"name": "gpu-booking-webhook"}}
        call = {**ours["webhooks"][0]["clientConfig"]["service"], "namespace": "maia"}
        theirs["webhooks"] = [{**ours["webhooks"][0], "clientConfig": {"service": call}}]
        await lab.client.create(MUTATING_WEBHOOKS, theirs)
        (found, *_) = (await purge_of(lab).plan()).leftovers
        assert (found.resource, found.name) == (MUTATING_WEBHOOKS, "carrel")
        await purge_of(lab).delete(found)
        with pytest.raises(NotFound):
            await lab.client.get(MUTATING_WEBHOOKS, "carrel")
        assert await lab.client.get(MUTATING_WEBHOOKS, "gpu-booking-webhook")
