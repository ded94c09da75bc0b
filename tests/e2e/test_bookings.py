"""A booking is worth what was booked: the booking service, the webhook, the extender with a real kube-scheduler and the
controller on a real API server, each with the rights of its own account. People book and create pods; nobody else acts.
"""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.manifests import rbac
from carrel.parsing.time import seconds
from testbed.control_plane import ApiServer
from testbed.processes import Process
from tests.e2e.carrel_cluster import CarrelCluster, a_node, carrel_cluster
from tests.e2e.configuration import ADMIN
from tests.e2e.pods import Json, eventually, is_gone, namespace, pod
from tests.e2e.webhook import UserClient, Webhook
from tests.kit.booking_service import BookingProcess

ADA, BOB, EVE, ROOT = "ada@lab.example", "bob@lab.example", "eve@lab.example", "root@lab.example"
GROUPS = ["system:serviceaccounts", "system:serviceaccounts:carrel", "system:authenticated"]
A6000 = "NVIDIA-RTX-A6000"
LIMIT_S = 180
"""For broken components; what is waited for takes seconds."""


CONFIGURATION = {
    "bookings": {
        "rules": {"minDuration": "36s", "cooldown": "0s", "planned": 10},
        "roles": {"platformAdmins": [ROOT]},
    }
}


class Lab:
    def __init__(self, cluster: CarrelCluster) -> None:
        self.cluster, self.api = cluster, cluster.api
        self.people = {name: UserClient(self.api, name) for name in (ADA, BOB, EVE)}
        self.admin = UserClient(self.api, ADMIN)
        self.service = self.start_booking_service()
        url = self._url()
        self.tokens = {name: BookingProcess(url).token(name) for name in (ADA, BOB, EVE, ROOT)}

    def start_booking_service(self) -> Process:
        rights = self.api.kubeconfig_of("system:serviceaccount:carrel:carrel-booking", GROUPS)
        database = f"sqlite:///{self.api.run.data}/bookings.db"
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "carrel",
            "booking",
            "--kubeconfig",
            rights,
            "--dev",
            "--port",
            "0",
        ]
        service = self.api.start("booking", [*command, "--database", database])
        service.wait_until("listening", lambda: "listening url=" in service.log.read_text())
        self.service = service
        eventually(lambda: self._ready(), LIMIT_S)
        return service

    def _url(self) -> str:
        return self.service.log.read_text().rpartition("listening url=")[2].split()[0]

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url()}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    # --- bookings ----------------------------------------------------------------------------------------------------

    def ask(self, who: str, method: str, path: str, body: Json | None = None) -> Json:
        headers = {"authorization": f"Bearer {self.tokens[who]}", "content-type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{self._url()}{path}", data, headers, method=method)
        try:
            answer: Json = json.loads(urllib.request.urlopen(request, timeout=60).read() or "{}")
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None
        return answer

    def book(self, who: str, gpus: int = 1, start: datetime | None = None, **more: Any) -> str:
        begins = start or now()
        times = {"start": seconds(begins) if start else None, "end": seconds(begins + timedelta(days=2))}
        wanted = {"model": A6000, "gpus": gpus, **{key: time for key, time in times.items() if time}, **more}
        return str(self.ask(who, "POST", "/api/v1/bookings", wanted)["id"])

    def end_at(self, who: str, id: str, end: datetime) -> None:
        self.ask(who, "PATCH", f"/api/v1/bookings/{id}", {"end": seconds(end)})

    def cancel(self, who: str, id: str) -> None:
        self.ask(who, "POST", f"/api/v1/bookings/{id}/cancel", {})

    def exists(self, id: str) -> bool:
        """In the cluster."""
        return not is_gone(self.api, BOOKINGS.path(name=id))

    def used(self, id: str) -> int:
        return int(self.api.call("GET", BOOKINGS.path(name=id)).get("status", {}).get("used", -1))

    # --- pods --------------------------------------------------------------------------------------------------------

    def create(self, who: str, ours: str, name: str, **notes: str) -> Json:
        manifest = pod(name, limits={"nvidia.com/gpu": "1"})
        manifest["metadata"]["annotations"] = notes
        status, answer = self.people[who].call("POST", f"/api/v1/namespaces/{ours}/pods", manifest)
        assert status == 201, answer
        return answer

    def tiers(self, ours: str) -> dict[str, str]:
        return {
            name: each["metadata"]["annotations"].get("carrel.dev/tier", "") for name, each in self.pods(ours).items()
        }

    def ends(self, ours: str, name: str) -> str:
        return str(self.pods(ours)[name]["metadata"]["annotations"].get("terminate-at"))

    def pods(self, ours: str) -> dict[str, Json]:
        return self.cluster.pods(ours)

    def is_bound(self, ours: str, *names: str) -> bool:
        return all(self.pods(ours)[name]["spec"].get("nodeName") for name in names)

    def reasons(self, ours: str, name: str) -> set[str]:
        found = self.api.call("GET", f"/api/v1/namespaces/{ours}/events")["items"]
        return {each["reason"] for each in found if each["involvedObject"]["name"] == name}


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def with_rights(api: ApiServer, component: str) -> Any:
    return api.kubeconfig_of(f"system:serviceaccount:carrel:carrel-{component}", GROUPS)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with carrel_cluster("bookings", [a_node("n1", [16276] * 2)], CONFIGURATION) as cluster:
        for each in rbac():
            path = {"Namespace": "/api/v1/namespaces"}.get(each["kind"], "")
            if path and each["metadata"]["name"] != "carrel":
                cluster.api.call("POST", path, each)
        for each in rbac():
            if each["kind"] != "Namespace":
                cluster.api.call("POST", rbac_path(each), each)
        cluster.controller.stop()
        cluster.controller = cluster.start_controller("--kubeconfig", with_rights(cluster.api, "controller"))
        cluster.api.start_scheduler()  # for pods that have no GPU any more
        Webhook(cluster.api).install()
        yield Lab(cluster)


def rbac_path(each: Json) -> str:
    ours = each["metadata"].get("namespace", "")
    if each["kind"] == "ServiceAccount":
        return f"/api/v1/namespaces/{ours}/serviceaccounts"
    group = "/apis/rbac.authorization.k8s.io/v1"
    kind = f"{each['kind'].lower()}s"
    return f"{group}/namespaces/{ours}/{kind}" if ours else f"{group}/{kind}"


def test_one_booked_gpu_and_three_pods(lab: Lab) -> None:
    with namespace(lab.api) as ours:
        id = lab.book(ADA)
        eventually(lambda: lab.exists(id), LIMIT_S)
        for name in ("first", "second", "third"):
            lab.create(ADA, ours, name)
        eventually(lambda: lab.is_bound(ours, "first", "second"), LIMIT_S)
        eventually(lambda: sorted(lab.tiers(ours).values()) == ["booked", "opportunistic", "opportunistic"], LIMIT_S)
        eventually(lambda: lab.tiers(ours)["first"] == "booked", LIMIT_S)
        eventually(lambda: lab.used(id) == 1, LIMIT_S)

        # The covered pod ends: the next one is covered.
        lab.api.call("DELETE", f"/api/v1/namespaces/{ours}/pods/first?gracePeriodSeconds=0")
        eventually(lambda: lab.tiers(ours).get("second") == "booked", LIMIT_S)

        # It is shortened and extended: the end follows.
        for days in (1, 3):
            end = now() + timedelta(days=days)
            lab.end_at(ADA, id, end)
            eventually(lambda: lab.ends(ours, "second") == seconds(end), LIMIT_S)  # noqa: B023 # used at once

        # It is cancelled: the pods stay, as opportunistic ones.
        uid = lab.pods(ours)["second"]["metadata"]["uid"]
        lab.cancel(ADA, id)
        eventually(lambda: set(lab.tiers(ours).values()) == {"opportunistic"}, LIMIT_S)
        assert lab.pods(ours)["second"]["metadata"]["uid"] == uid
        assert lab.ends(ours, "second").startswith("1900")
        eventually(lambda: "NotCoveredByBooking" in lab.reasons(ours, "second"), LIMIT_S)
        assert not lab.exists(id)


def test_a_booking_that_starts_while_pods_run_and_wait(lab: Lab) -> None:
    with namespace(lab.api) as ours:
        start = now() + timedelta(seconds=12)
        id = lab.book(BOB, start=start)
        eventually(lambda: lab.exists(id), LIMIT_S)
        lab.create(EVE, ours, "greedy-1")
        lab.create(EVE, ours, "greedy-2")
        eventually(lambda: lab.is_bound(ours, "greedy-1", "greedy-2"), LIMIT_S)
        waits = lab.create(BOB, ours, "later", **{"carrel.dev/booking": "next"})
        assert {"name": "carrel.dev/booking"} in waits["spec"]["schedulingGates"]
        assert waits["metadata"]["annotations"]["carrel.dev/booking"] == id

        # It starts: the gate opens, a GPU is revoked, and the pod is placed.
        eventually(lambda: lab.is_bound(ours, "later"), LIMIT_S)
        assert now() >= start
        eventually(lambda: lab.tiers(ours)["later"] == "booked", LIMIT_S)
        handed_over = [
            name for name, each in lab.pods(ours).items() if "carrel.dev/handed-over" in each["metadata"]["annotations"]
        ]
        assert len(handed_over) == 1
        lab.cancel(BOB, id)


def test_a_pod_whose_future_booking_is_cancelled_continues_without_it(lab: Lab) -> None:
    with namespace(lab.api) as ours:
        id = lab.book(BOB, start=now() + timedelta(hours=1))
        eventually(lambda: lab.exists(id), LIMIT_S)
        lab.create(BOB, ours, "later", **{"carrel.dev/booking": id})
        lab.cancel(BOB, id)
        eventually(lambda: lab.is_bound(ours, "later"), LIMIT_S)
        eventually(lambda: lab.tiers(ours)["later"] == "opportunistic", LIMIT_S)
        eventually(lambda: "BookingCancelled" in lab.reasons(ours, "later"), LIMIT_S)


@pytest.mark.parametrize("booking", ["0123456789abcdef0123456789abcdef", "next"])
def test_a_pod_for_a_booking_that_one_does_not_have_is_refused(lab: Lab, booking: str) -> None:
    with namespace(lab.api) as ours:
        manifest = pod("later", limits={"nvidia.com/gpu": "1"})
        manifest["metadata"]["annotations"] = {"carrel.dev/booking": booking}
        status, answer = lab.people[EVE].call("POST", f"/api/v1/namespaces/{ours}/pods", manifest)
        assert status in (403, 422) and "booking" in answer["message"], answer


def test_all_goes_on_while_the_booking_service_is_down(lab: Lab) -> None:
    with namespace(lab.api) as ours:
        id = lab.book(ADA)
        eventually(lambda: lab.exists(id), LIMIT_S)
        lab.service.stop()
        try:
            for name in ("greedy-1", "greedy-2"):
                lab.create(EVE, ours, name)
            eventually(lambda: lab.is_bound(ours, "greedy-1", "greedy-2"), LIMIT_S)
            lab.create(ADA, ours, "mine")
            eventually(lambda: lab.is_bound(ours, "mine"), LIMIT_S)
            eventually(lambda: lab.tiers(ours)["mine"] == "booked", LIMIT_S)
        finally:
            lab.start_booking_service()
        lab.cancel(ADA, id)
        eventually(lambda: lab.tiers(ours)["mine"] == "opportunistic", LIMIT_S)


def test_the_members_of_a_group_share_its_booking(lab: Lab) -> None:
    for who, role in ((ADA, "manager"), (BOB, "member")):
        lab.ask(ROOT, "PUT", f"/api/v1/groups/vision/people/{who}", {"role": role})
    with namespace(lab.api) as ours:
        id = lab.book(ADA, group="vision")
        eventually(lambda: lab.exists(id), LIMIT_S)
        assert lab.api.call("GET", BOOKINGS.path(name=id))["spec"]["members"] == [ADA, BOB]
        lab.create(BOB, ours, "bobs")
        eventually(lambda: lab.is_bound(ours, "bobs"), LIMIT_S)
        lab.create(ADA, ours, "adas")
        lab.create(EVE, ours, "eves")
        eventually(lambda: lab.is_bound(ours, "adas") or lab.is_bound(ours, "eves"), LIMIT_S)
        eventually(
            lambda: lab.tiers(ours) == {"bobs": "booked", "adas": "opportunistic", "eves": "opportunistic"}, LIMIT_S
        )

        # Bob leaves the group: the booking covers the pod of the other member, if it has a GPU, or else gets it one.
        lab.ask(ROOT, "DELETE", f"/api/v1/groups/vision/people/{BOB}")
        eventually(lambda: lab.tiers(ours)["bobs"] == "opportunistic", LIMIT_S)
        eventually(lambda: lab.tiers(ours)["adas"] == "booked", LIMIT_S)
        lab.cancel(ADA, id)


def test_two_schedulers_race_for_the_last_covered_gpu(lab: Lab) -> None:
    """Each has an extender of its own; both may record the coverage, and one record is corrected."""
    lab.cluster.start_another_scheduler("second-scheduler")
    with namespace(lab.api) as ours:
        id = lab.book(ADA)
        eventually(lambda: lab.exists(id), LIMIT_S)
        for number in range(2):
            manifest = pod(f"p{number}", limits={"nvidia.com/gpu": "1"})
            manifest["spec"]["schedulerName"] = ("gpu-scheduler", "second-scheduler")[number]
            notes = {"carrel.dev/user": ADA, "carrel.dev/tier": "opportunistic", "terminate-at": "1900-01-01T08:00:00Z"}
            manifest["metadata"]["annotations"] = notes
            # As Carrel would have admitted it.
            status, answer = lab.admin.call("POST", f"/api/v1/namespaces/{ours}/pods", manifest)
            assert status == 201, answer
        eventually(lambda: lab.is_bound(ours, "p0", "p1"), LIMIT_S)
        eventually(lambda: sorted(lab.tiers(ours).values()) == ["booked", "opportunistic"], LIMIT_S)
        eventually(lambda: lab.used(id) == 1, LIMIT_S)
        lab.cancel(ADA, id)


def test_nobody_edits_a_booking_by_hand(lab: Lab) -> None:
    id = lab.book(EVE)
    eventually(lambda: lab.exists(id), LIMIT_S)
    for method, body in (("PATCH", {"spec": {"gpus": 8}}), ("DELETE", None)):
        status, answer = lab.people[EVE].call(method, BOOKINGS.path(name=id), body)
        assert status == 403 and "carrel" in answer["message"], answer
    assert lab.api.call("GET", BOOKINGS.path(name=id))["spec"]["gpus"] == 1
    lab.cancel(EVE, id)
