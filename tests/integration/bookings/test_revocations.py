"""That a pod lost its GPU is logged once, from the controller's record; and what the component may do in a cluster."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from carrel.bookings.mirror import BookingMirror
from carrel.bookings.notifications.watches import RevocationWatch
from carrel.bookings.people import RoleOptions
from carrel.bookings.records import LogEntry
from carrel.bookings.sign_in.token_review import TokenReviewer
from carrel.bookings.store.outbox import SqlOutbox
from carrel.cluster.configuration_changes import ChangeNote, read_objects, write_changes
from carrel.cluster.configuration_record import ensure_changes
from carrel.cluster.options import ClusterOptions
from carrel.cluster.state import ClusterState
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import DeleteOptions
from carrel.kubernetes.objects.resources import CRDS, PODS
from carrel.kubernetes.transport import ApiRequest, ResponseLike
from carrel.manifests import rbac
from kubernetes_in_memory import EmbeddedApi
from kubernetes_in_memory.auth import ADMIN
from kubernetes_in_memory.request_info import call_of
from tests.kit.booking import MEMBER, Opened, made
from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import a_node
from tests.kit.kai import POD_GROUP_KIND
from tests.kit.lab import QUICK, Lab, a_lab
from tests.kit.tiers import OPPORTUNISTIC, TierController, an_opportunistic_pod, an_unschedulable_booked_pod, settle

TOLD = ("namespace", "pod", "ends", "then")


@contextlib.asynccontextmanager
async def hearing(carrel: ClusterState, outbox: SqlOutbox) -> AsyncIterator[None]:
    revocations = RevocationWatch(carrel, outbox)
    running = [asyncio.ensure_future(each) for each in (carrel.informers.run(), revocations.run())]
    try:
        async with asyncio.timeout(LIMIT_S):
            await carrel.informers.wait_synced()
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def a_replica(lab: Lab) -> ClusterState:
    return ClusterState(Client(lab.api), ClusterOptions(now=lab.clock, clock=lab.clock.seconds, watch_timing=QUICK))


async def entries(opened: Opened) -> list[LogEntry]:
    async with opened.service.queries.store.reading() as reading:
        return list(await reading.log())


async def test_two_replicas_log_once_that_a_pod_lost_its_gpu(opened: Opened) -> None:
    outbox = opened.service.outbox
    async with (
        a_lab([a_node("n1", gpus=1)]) as lab,
        lab.replica() as controller,
        hearing(a_replica(lab), outbox),
        hearing(a_replica(lab), outbox),
    ):
        annotations = {**OPPORTUNISTIC, "carrel.dev/user": "Ada@lab.org"}
        await an_opportunistic_pod(lab, controller, "train", annotations=annotations)
        await an_unschedulable_booked_pod(lab, "urgent")
        await settle(lab, TierController(controller))
        (entry,) = await eventually_entries(opened)
    # The pod may be gone, with its GPU, before a replica has seen the record.
    assert entry.details["uid"] and entry.details["held"] in ("0", "1")
    told = (entry.action, entry.subject, {key: entry.details[key] for key in TOLD}, entry.why)
    why = "a GPU was needed for the booked pod lab/urgent"
    details = {
        "namespace": "lab",
        "pod": "train",
        "ends": "2026-11-16T12:00:00Z",
        "then": "is created again without a GPU",
    }
    assert told == ("revoked", "ada@lab.org", details, why)


async def test_a_pod_without_an_owner_and_an_expired_pod_are_not_logged(opened: Opened) -> None:
    outbox = opened.service.outbox
    async with (
        a_lab([a_node("n1", gpus=2)]) as lab,
        lab.replica() as controller,
        hearing(a_replica(lab), outbox),
    ):
        expired = {"terminate-at": "2026-11-16T11:00:00Z", "carrel.dev/user": "ben@lab.org"}
        await an_opportunistic_pod(lab, controller, "stray")
        await an_opportunistic_pod(lab, controller, "over", annotations=expired)
        await an_unschedulable_booked_pod(lab, "urgent", limits={"nvidia.com/gpu": "2"})
        await settle(lab, TierController(controller))
    assert await entries(opened) == []


async def eventually_entries(opened: Opened) -> list[LogEntry]:
    for _ in range(6000):
        if found := await entries(opened):
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was noted")


class Recorder:
    """A transport that remembers which right each call needs."""

    def __init__(self, api: EmbeddedApi) -> None:
        self._api = api
        self.used: set[tuple[str, str, str, str]] = set()

    async def send(self, request: ApiRequest) -> ResponseLike:
        if request.path != "/version":
            call = call_of(request, self._api.kinds, ADMIN)
            where = call.target.namespace if call.target.namespace == "carrel" else ""
            self.used.add((where, call.kind.group, call.kind.plural, call.verb))
        return await self._api.send(request)

    async def aclose(self) -> None:
        """The API belongs to the test."""


async def test_the_role_of_the_booking_service_allows_what_it_calls_and_nothing_else(opened: Opened) -> None:
    async with a_lab([a_node("n1", gpus=1)], has_booker=False) as lab:
        await lab.client.create(CRDS, POD_GROUP_KIND)
        recorder = Recorder(lab.api)
        client = Client(recorder)
        async with hearing(ClusterState(client, ClusterOptions(watch_timing=QUICK)), opened.service.outbox):
            pass
        assert await TokenReviewer(client, RoleOptions(), lab.clock.seconds).person("made-up") is None
        await _mirror_a_booking(BookingMirror(client, opened.service.queries), opened)
        await ensure_changes(lab.client, "carrel")  # as the controller does
        there = (await read_objects(client, "carrel")).people
        await write_changes(client, "carrel", there, "tiers: {revocationGrace: 30s}", ChangeNote("ada", "why not"))

    assert recorder.used == {
        (document["metadata"].get("namespace", ""), group, resource, verb)
        for document in rbac()
        if document["metadata"]["name"] == "carrel-booking"
        for rule in document.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


async def _mirror_a_booking(mirror: BookingMirror, opened: Opened) -> None:
    """Its object is created, changed and deleted."""
    ada = await opened.caller(MEMBER)
    booking = (await made(ada, days=2))["id"]
    assert await mirror.compare() == [booking]
    await mirror.write(booking)
    await ada.patch(f"/api/v1/bookings/{booking}", {"gpus": 2})
    await mirror.write(booking)
    await ada.post(f"/api/v1/bookings/{booking}/cancel")
    await mirror.write(booking)
    assert await mirror.compare() == []


async def test_a_token_that_the_cluster_gave_a_hub_makes_it_a_hub() -> None:
    async with a_lab([]) as lab:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "hub", "namespace": "carrel"}}
        await lab.api.send(_post("/api/v1/namespaces/carrel/serviceaccounts", account))
        spec = {"containers": [{"name": "main", "image": "work"}], "serviceAccountName": "hub"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hub-1"}, "spec": spec}
        await lab.client.create(PODS, pod, "carrel")
        bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "hub-1"}}
        token, unbound = [await _token(lab, spec) for spec in (bound, {})]

        roles = RoleOptions(hubs=frozenset({"system:serviceaccount:carrel:hub"}))
        person = await TokenReviewer(lab.client, roles, lab.clock.seconds).person(token)
        nobodys = await TokenReviewer(lab.client, roles, lab.clock.seconds).person(unbound)
        stranger = await TokenReviewer(lab.client, RoleOptions(), lab.clock.seconds).person(token)
        await lab.client.delete(PODS, "hub-1", "carrel", how=DeleteOptions(grace_seconds=0))
        later = await TokenReviewer(lab.client, roles, lab.clock.seconds).person(token)
    assert person is not None
    assert (person.is_hub, person.may_book) == (True, False)
    assert stranger is None
    assert nobodys is None, "it is bound to no pod"
    assert later is None, "its pod is gone"


async def _token(lab: Lab, spec: dict[str, Any]) -> str:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = await lab.api.send(_post("/api/v1/namespaces/carrel/serviceaccounts/hub/token", request))
    return str(json.loads(answer.body)["status"]["token"])


def _post(path: str, body: dict[str, Any]) -> ApiRequest:
    return ApiRequest("POST", path, headers={"content-type": "application/json"}, body=json.dumps(body).encode())
