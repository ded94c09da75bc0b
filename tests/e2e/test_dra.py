"""ResourceClaims and pods of other dialects on one real node: one ledger, real containers, any scheduler."""

import json
import urllib.error
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.parsing.time import seconds
from tests.e2e.carrel_node import MEM, CarrelNode, a_pod, reading_own_gpus
from tests.e2e.claim_node import claim_node, since_1_36, slices, with_claim
from tests.e2e.pods import Json, create, eventually, namespace, wait_for_phase
from tests.e2e.webhook import UserClient

TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
HALF, WHOLE = {"resourceClaimTemplateName": "half"}, {"resourceClaimTemplateName": "whole"}
ONE_GPU = [{"count": 1, "model": "Tesla-V100", "memoryMiB": 16276}]

pytestmark = since_1_36


@pytest.fixture(scope="module")
def carrel() -> Iterator[CarrelNode]:
    with claim_node("dra", ONE_GPU, admits_pods=True) as found:
        yield found


def template(carrel: CarrelNode, where: str, name: str, memory: str = "") -> None:
    capacity = {"capacity": {"requests": {"memory": memory}}} if memory else {}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.carrel.dev", **capacity}}]
    body = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}
    carrel.api.call("POST", TEMPLATES.format(where), body)


def shares(carrel: CarrelNode) -> list[tuple[str, int | None]]:
    """Of the one GPU: what kind of holder, and how many MiB."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/carrel/leases/gpu-{carrel.node.name}-0"
    try:
        notes = carrel.api.call("GET", path)["metadata"]["annotations"]
    except urllib.error.HTTPError as error:
        assert error.code == 404, error
        return []
    told = json.loads(notes["carrel.dev/shares"]).values()
    return sorted(("claim" if "claim" in each else "pod", each.get("mib")) for each in told)


def shadows(carrel: CarrelNode) -> list[str]:
    """What is shown to schedulers as held of the one GPU."""
    found = carrel.api.call("GET", f"{CLAIMS.format('carrel')}?labelSelector=carrel.dev/shadow=true")["items"]
    allocations = [each["status"]["allocation"] for each in found if "allocation" in each.get("status", {})]
    return sorted(each["devices"]["results"][0]["consumedCapacity"]["memory"] for each in allocations)


def why_not_allocated(carrel: CarrelNode, where: str, memory: str) -> str:
    """What a scheduler is told that has not seen who holds the GPU."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.carrel.dev"}}]
    body = {"metadata": {"name": "by-hand"}, "spec": {"devices": {"requests": requests}}}
    claim = carrel.api.call("POST", CLAIMS.format(where), body)
    device = {"request": "gpu", "driver": "gpu.carrel.dev", "pool": carrel.node.name}
    device |= {"device": str(carrel.devices()[0]["uuid"]).lower()}
    share = {"shareID": "1484c3ae-ed0c-422c-ae91-1aab7c526f5c", "consumedCapacity": {"memory": memory}}
    claim["status"] = {"allocation": {"devices": {"results": [{**device, **share}]}}}
    try:
        carrel.api.call("PUT", f"{CLAIMS.format(where)}/by-hand/status", claim)
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read())["message"])
    return ""


def test_the_slice_advertises_memory_that_can_be_divided(carrel: CarrelNode) -> None:
    (found,) = slices(carrel)
    (device,) = found["spec"]["devices"]
    assert device["capacity"]["memory"]["value"] == "16276Mi"
    assert device["allowMultipleAllocations"] is True


def test_one_gpu_is_shared_by_gpushare_a_fraction_and_a_claim_and_never_exceeded(carrel: CarrelNode) -> None:
    uuid = carrel.devices()[0]["uuid"]
    with namespace(carrel.api) as name:
        template(carrel, name, "half", "8138Mi")
        _, share = carrel.run(name, reading_own_gpus(a_pod("share", {MEM: "4069"})))
        _, part = carrel.run(name, reading_own_gpus(a_pod("part", annotations={"gpu-fraction": "0.25"})))
        _, claim = carrel.run(name, with_claim("claims", HALF))
        assert [told["NVIDIA_VISIBLE_DEVICES"] for told in (share, part, claim)] == [uuid] * 3
        assert shares(carrel) == [("claim", 8138), ("pod", 4069), ("pod", 4069)]

        assert "has 0 MiB free, 1 MiB asked; held by" in why_not_allocated(carrel, name, "1Mi")
        eventually(lambda: shadows(carrel) == ["4069Mi", "4069Mi"])
        create(carrel.api, name, with_claim("late", HALF))

        def waits() -> bool:
            events = carrel.api.call("GET", f"/api/v1/namespaces/{name}/events")["items"]
            return any("cannot allocate all claims" in each["message"] for each in events)

        eventually(waits)  # its scheduler sees that nothing is free, and does not try in vain
        for each in ("share", "part"):
            carrel.api.call("DELETE", f"/api/v1/namespaces/{name}/pods/{each}")
        wait_for_phase(carrel.api, name, "late", "Running")
        assert shares(carrel) == [("claim", 8138), ("claim", 8138)]
        eventually(lambda: shadows(carrel) == [])

        carrel.api.call("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/carrel/leases/gpu-{carrel.node.name}-0")
        eventually(lambda: shares(carrel) == [("claim", 8138), ("claim", 8138)])  # they run: they are found again
    eventually(lambda: shares(carrel) == [])


ADA, EVE = "ada@lab.example", "eve@lab.example"


def make(carrel: CarrelNode, who: str, where: str, manifest: Json) -> None:
    status, answer = UserClient(carrel.api, who).call("POST", f"/api/v1/namespaces/{where}/pods", manifest)
    assert status == 201, answer


def tier_of(pod: Json) -> str:
    return str(pod["metadata"]["annotations"].get("carrel.dev/tier", ""))


def successor(carrel: CarrelNode, where: str, name: str) -> Json:
    """The pod that goes on without its claim."""

    def runs() -> Json | None:
        try:
            found = carrel.api.call("GET", f"/api/v1/namespaces/{where}/pods/{name}")
        except urllib.error.HTTPError:
            return None  # its predecessor is gone, and it is not there yet
        is_it = "carrel.dev/handed-over" in found["metadata"]["annotations"]
        return found if is_it and found["status"].get("phase") == "Running" else None

    found = eventually(runs, 180)
    assert found is not None
    return found


def end_soon(carrel: CarrelNode, where: str) -> None:
    """Shortens the booking. If it ended before its pod could be told, there is more time at the next try."""
    for left in (8, 16, 32, 64):
        end = seconds(datetime.now(UTC) + timedelta(seconds=left))
        UserClient(carrel.api, "admin").call("PATCH", BOOKINGS.path(name="adas"), {"spec": {"end": end}})

        def told(end: str = end) -> str:
            notes = carrel.api.call("GET", f"/api/v1/namespaces/{where}/pods/adas")["metadata"]["annotations"]
            is_beyond = notes["carrel.dev/tier"] == "opportunistic"
            return "too late" if is_beyond else "in time" if notes["terminate-at"] == end else ""

        if eventually(told) == "in time":
            return
    raise AssertionError("the pod was never told in time when its booking ends")


def test_a_booked_pod_takes_the_gpu_of_an_opportunistic_claim_and_loses_its_own_with_its_booking(
    carrel: CarrelNode,
) -> None:
    now, quickly = datetime.now(UTC), {"terminationGracePeriodSeconds": 1}
    times = {"start": seconds(now - timedelta(minutes=5)), "end": seconds(now + timedelta(hours=2))}
    with namespace(carrel.api) as name:
        template(carrel, name, "whole")
        make(carrel, EVE, name, with_claim("eves", WHOLE, **quickly))
        assert tier_of(wait_for_phase(carrel.api, name, "eves", "Running")) == "opportunistic"
        booking = {"metadata": {"name": "adas"}, "spec": {"user": ADA, "gpus": 1, **times}}
        carrel.api.call("POST", BOOKINGS.path(), {"apiVersion": BOOKINGS.api_version, "kind": "Booking", **booking})
        make(carrel, ADA, name, with_claim("adas", WHOLE, **quickly))

        assert "resourceClaims" not in successor(carrel, name, "eves")["spec"]
        adas = wait_for_phase(carrel.api, name, "adas", "Running")
        eventually(lambda: carrel.api.call("GET", BOOKINGS.path(name="adas")).get("status", {}).get("used") == 1)
        pod = carrel.api.call("GET", f"/api/v1/namespaces/{name}/pods/adas")
        assert (tier_of(pod), pod["metadata"]["uid"]) == ("booked", adas["metadata"]["uid"])
        assert shares(carrel) == [("claim", None)]

        end_soon(carrel, name)
        assert "resourceClaims" not in successor(carrel, name, "adas")["spec"]
        eventually(lambda: shares(carrel) == [], 180)
        carrel.api.call("DELETE", BOOKINGS.path(name="adas"))


def test_a_pod_that_asks_by_the_resource_of_the_class_has_a_tier_and_its_gpu(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as name:
        resource = "deviceclass.resource.kubernetes.io/gpu.carrel.dev"
        make(carrel, EVE, name, a_pod("eves", {resource: "1"}, schedulerName="default-scheduler"))
        eves = wait_for_phase(carrel.api, name, "eves", "Running")
        assert (tier_of(eves), eves["metadata"]["annotations"]["carrel.dev/user"]) == ("opportunistic", EVE)
        assert carrel.told(name, "eves")["NVIDIA_VISIBLE_DEVICES"] == carrel.devices()[0]["uuid"]
        assert shares(carrel) == [("claim", None)]
    eventually(lambda: shares(carrel) == [])


def test_admin_access_waits_until_kube_scheduler_finds_the_memory_free(carrel: CarrelNode) -> None:
    """A limit of kube-scheduler, which `docs/dra.md` describes: where memory can be divided it counts what a claim with
    admin access asks for, as that of every claim. If this fails, kube-scheduler has learnt it, and the document has to
    follow."""
    with namespace(carrel.api) as name:
        label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
        UserClient(carrel.api, "admin").call("PATCH", f"/api/v1/namespaces/{name}", label)
        carrel.run(name, reading_own_gpus(a_pod("share", {MEM: "4069"})))
        eventually(lambda: shadows(carrel) == ["4069Mi"])
        for claim, asked in (("all", {}), ("little", {"capacity": {"requests": {"memory": "1Mi"}}})):
            exactly = {"deviceClassName": "gpu.carrel.dev", "adminAccess": True, **asked}
            body = {
                "metadata": {"name": claim},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
            }
            carrel.api.call("POST", CLAIMS.format(name), body)
            create(carrel.api, name, with_claim(claim, {"resourceClaimName": claim}))
        wait_for_phase(carrel.api, name, "little", "Running")
        assert shares(carrel) == [("pod", 4069)], "it takes nothing"

        def waits() -> bool:
            events = carrel.api.call("GET", f"/api/v1/namespaces/{name}/events")["items"]
            waiting = [each for each in events if each["involvedObject"]["name"] == "all"]
            return any("cannot allocate all claims" in each["message"] for each in waiting)

        eventually(waits)
        carrel.api.call("DELETE", f"/api/v1/namespaces/{name}/pods/share")
        wait_for_phase(carrel.api, name, "all", "Running")
        assert shares(carrel) == []


KAIS_CLASS = "/apis/scheduling.k8s.io/v1/priorityclasses"


def test_a_pod_that_names_a_priority_class_of_kai_is_refused_until_the_class_is_made_again(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as name:
        manifest = a_pod("train", {MEM: "1000"}, priorityClassName="build-preemptible")
        user = UserClient(carrel.api, EVE)
        status, answer = user.call("POST", f"/api/v1/namespaces/{name}/pods", manifest)
        assert status == 403 and "no PriorityClass with name build-preemptible was found" in str(answer)

        body = {"metadata": {"name": "build-preemptible"}, "value": 0, "preemptionPolicy": "Never"}
        carrel.api.call("POST", KAIS_CLASS, body)
        try:
            status, answer = user.call("POST", f"/api/v1/namespaces/{name}/pods", manifest)
            assert status == 201, answer
        finally:
            carrel.api.call("DELETE", f"{KAIS_CLASS}/build-preemptible")
