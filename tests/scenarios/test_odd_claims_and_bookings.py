"""Bookings and claims that are not as usual: made by schedulers, of deleted classes, used by several pods, refused."""

from datetime import timedelta
from typing import Any

import pytest

from carrel.ids import PodUid
from carrel.kubernetes.cluster import BindTarget, DeleteOptions, Forbidden, Json
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.resource_claims.objects import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.kit.claimed_pods import ADA, EVE, ClaimLab, a_claim_lab, asking, new_class
from tests.kit.dra import allocated, store
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, N2, a_node
from tests.kit.lab import DAY
from tests.kit.tiers import mark_unschedulable, schedule, set_status
from tests.scenarios.test_claims_and_bookings import WHOLE, covered_by, handed_over, records, the_allocator, told

# --- the end of a booking ---------------------------------------------------------------------------------------------


async def a_pod_with_an_extended_resource(
    of: ClaimLab, name: str, resource: str = "nvidia.com/gpu", annotations: Json = ADA
) -> None:
    """As kube-scheduler places it: it makes a claim for the resource, and says so in the pod's status."""
    pod = await of.lab.pod(name, limits={resource: "1"}, annotations=annotations, scheduler="default-scheduler")
    uid = pod["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
    metadata: Json = {
        "name": f"{name}-x",
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": [owner],
    }
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": asking()}
    claim = await of.lab.client.create(RESOURCE_CLAIMS, body, "lab")
    await of.follow()
    user = of.replica.holders.pod_of(claim["metadata"]["uid"])
    assert user is not None, "the GPUs are the pod's although neither names the other yet"
    assert await of.gate.allocate(of.lab, claim, {"n1/gpu-0": ""}, pod) is None
    mapping = {"containerName": "main", "resourceName": resource, "requestName": "gpu"}
    made = {"resourceClaimName": f"{name}-x", "requestMappings": [mapping]}
    await set_status(of.lab, name, {"extendedResourceClaimStatus": made})
    await of.lab.client.bind(BindTarget("lab", name, uid, "n1"))
    await set_status(of.lab, name, {"phase": "Running", "startTime": of.lab.clock.now.isoformat()})


@pytest.mark.parametrize("odd", ["the claim was made for an extended resource", "the class is gone"])
async def test_a_pod_ends_with_its_booking_although_its_spec_no_longer_shows_its_gpu(odd: str) -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.lab.book()
        if odd == "the class is gone":
            await of.template("odd", asking(device_class="ours"))
            await new_class(of.lab, "ours")
            await of.pod("train", ADA, template="odd")
        else:
            await a_pod_with_an_extended_resource(of, "train")
        await of.settle()
        assert await told(of, "train") == "booked"
        if odd == "the class is gone":
            assert of.replica.device_claims is not None
            classes = of.replica.device_claims.classes.store
            await of.lab.client.delete(DEVICE_CLASSES, "ours")
            await eventually(lambda: classes.get("ours") is None, "the class is gone from the cache")

        of.lab.clock.now += 2 * DAY
        await of.settle()

        assert await handed_over(of) == {"train"}
        assert await covered_by(of) == {}


OUR_RESOURCE = "deviceclass.resource.kubernetes.io/gpu.carrel.dev"


async def test_a_booking_gets_a_gpu_back_that_a_pod_has_by_the_resource_of_our_class() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await a_pod_with_an_extended_resource(of, "other", OUR_RESOURCE, EVE)
        await of.settle()
        await of.lab.book()
        await of.template("gpu", asking())
        await of.pod("train", ADA, template="gpu")
        await of.settle()

        assert await handed_over(of) == {"other"}
        limits = (await of.lab.client.get(PODS, "other", "lab"))["spec"]["containers"][0]["resources"].get("limits")
        assert not limits, "its successor would wait for the GPU again"
        assert await covered_by(of) == {"train-gpu": "booking-ada"}


async def test_a_booked_pod_that_asks_by_the_resource_of_our_class_gets_a_gpu_from_others() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.template("gpu", asking())
        await of.pod("other", EVE, template="gpu")
        await of.settle()
        await of.lab.book()
        await of.lab.pod("train", limits={OUR_RESOURCE: "1"}, annotations=ADA, scheduler="default-scheduler")
        await of.follow()
        await mark_unschedulable(of.lab, "train")
        await of.settle()

        assert await told(of, "train") == "booked"
        assert await handed_over(of) == {"other"}
        (kept,) = (await records(of)).values()
        assert kept.kept_for is not None and kept.kept_for.name == "train" and not kept.shares


# --- claims that cannot be read ---------------------------------------------------------------------------------------


async def test_a_claim_of_an_absurd_amount_is_told_in_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.template("absurd", asking(memory="1e30"))
        await of.pod("train", ADA, template="absurd")
        await of.follow()
        await mark_unschedulable(of.lab, "train")
        await of.controller.round()
        pod = of.replica.pods.store.get("train", "lab")
        assert pod is not None
        assert of.replica.requests.asks_any_scheduler(pod), "so the controller tells its reason in an Event"
        assert "memory of gpu.carrel.dev is '1e30'; expected a quantity up to" in str(
            of.replica.waiting_reason.why(pod)
        )
    assert not [record for record in caplog.records if record.exc_info]


# --- claims that Carrel allocates, or leaves to the scheduler ---------------------------------------------------------


async def a_booked_pod_that_waits(of: ClaimLab, *claims: str) -> Json:
    """With claims of these names, and a scheduler has tried to place it."""
    named = [{"name": each, "resourceClaimName": each} for each in claims]
    pod = await of.lab.pod("train", annotations=ADA, claims=named, scheduler="default-scheduler")
    await of.follow()
    await mark_unschedulable(of.lab, "train")
    await of.follow()
    return pod


@pytest.mark.parametrize("order", [("one", "linked"), ("linked", "one")])
async def test_an_island_for_one_of_several_claims_is_left_to_the_scheduler(order: tuple[str, str]) -> None:
    async with a_claim_lab(a_node("n1", 4)) as of:
        await of.lab.book(gpus=3)
        await of.claim("one")
        island = {"constraints": [{"matchAttribute": "gpu.carrel.dev/island"}]}
        await of.claim("linked", {"devices": {**asking(count=2)["devices"], **island}})
        await a_booked_pod_that_waits(of, *order)

        assert await the_allocator(of).round() == []
        assert await of.lab.held() == {}


async def test_a_claim_that_carrel_allocated_is_free_again_if_its_pod_goes_before_it_was_placed() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.lab.book()
        await of.claim("kept")
        await a_booked_pod_that_waits(of, "kept")
        assert await the_allocator(of).round() == ["lab/train"]

        await of.lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
        await of.settle()

        assert await of.lab.held() == {}


async def test_a_pod_stays_covered_when_the_allocation_of_its_claim_is_refused_and_it_is_not_tried_at_once() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.lab.book()
        await of.claim("kept")
        await a_booked_pod_that_waits(of, "kept")
        allocator, patch, during = the_allocator(of), of.replica.cluster.patch, []
        (before,) = of.replica.booked_waiting()

        async def refuse(*args: Any, **more: Any) -> Json:
            if args[0] is not RESOURCE_CLAIMS or more.get("subresource") != "status":
                return await patch(*args, **more)
            await of.follow()
            during.append(of.replica.booked_waiting())
            raise Forbidden(403, "Forbidden", "the gate does not know the Leases")

        with pytest.MonkeyPatch.context() as until_then:
            until_then.setattr(of.replica.cluster, "patch", refuse)
            for _ in range(3):
                assert await allocator.round() == []
                await of.follow()
        assert during == [()], "tried once, and then the claim had its GPUs"
        assert of.replica.booked_waiting() == (before,)

        of.lab.clock.now += timedelta(seconds=61)
        assert await allocator.round() == ["lab/train"]


async def test_one_claim_that_cannot_be_looked_at_keeps_no_other_from_being_allocated() -> None:
    async with a_claim_lab(a_node("n1", 2)) as of:
        await of.claim("odd")
        await of.pod("eves", EVE, claim="odd")
        await of.settle()
        await of.lab.book()
        await of.claim("kept")
        await a_booked_pod_that_waits(of, "kept")
        pod_of, odd = of.replica.holders.pod_of, (await of.lab.client.get(RESOURCE_CLAIMS, "odd", "lab"))

        def stumble(uid: str) -> Pod | None:
            if uid == odd["metadata"]["uid"]:
                raise KeyError(uid)
            return pod_of(PodUid(uid))

        assert [each.holder.name for each in of.replica.booked_waiting()] == ["train"], "known before"
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(of.replica.holders, "pod_of", stumble)
            assert await the_allocator(of).round() == ["lab/train"]


async def advertise(of: ClaimLab, *devices: Json) -> None:
    """What the slice of n1 says of its GPUs, besides their names."""
    assert of.replica.device_claims is not None
    slices = of.replica.device_claims.slices.store
    found = await of.lab.client.get(RESOURCE_SLICES, "n1-gpu.carrel.dev")
    kept = [
        {"name": each["name"], "attributes": each["attributes"], **more}
        for each, more in zip(found["spec"]["devices"], devices, strict=True)
    ]
    written = await of.lab.client.update(RESOURCE_SLICES, {**found, "spec": {**found["spec"], "devices": kept}})
    version = written["metadata"]["resourceVersion"]
    await eventually(
        lambda: any(each.metadata.resource_version == version for each in slices), "the cache shows the slice"
    )


async def allocated_to(of: ClaimLab, claim: str) -> list[Json]:
    status = (await of.lab.client.get(RESOURCE_CLAIMS, claim, "lab")).get("status", {})
    results: list[Json] = status.get("allocation", {"devices": {"results": []}})["devices"]["results"]
    return results


async def test_carrel_allocates_no_device_with_a_taint() -> None:
    async with a_claim_lab(a_node("n1", 2)) as of:
        await advertise(of, {"taints": [{"key": "nvidia.com/broken", "effect": "NoSchedule"}]}, {})
        await of.lab.book()
        await of.claim("kept")
        await a_booked_pod_that_waits(of, "kept")
        assert await the_allocator(of).round() == ["lab/train"]
        assert [each["device"] for each in await allocated_to(of, "kept")] == ["gpu-1"]


async def test_of_devices_that_are_not_divided_a_claim_that_names_memory_gets_a_whole_free_one() -> None:
    async with a_claim_lab(a_node("n1", 2)) as of:
        await of.lab.pod("part", limits={"aliyun.com/gpu-mem": "8"}, annotations=EVE)
        await of.settle()
        (first,) = await of.lab.held()
        await advertise(of, {}, {})
        await of.lab.book()
        await of.claim("kept", asking(memory="1Gi"))
        await a_booked_pod_that_waits(of, "kept")

        assert await the_allocator(of).round() == ["lab/train"]

        (result,) = await allocated_to(of, "kept")
        assert "consumedCapacity" not in result
        uid = (await of.lab.client.get(RESOURCE_CLAIMS, "kept", "lab"))["metadata"]["uid"]
        (second,) = (await of.lab.held()).keys() - {first}
        assert (await of.lab.held())[second] == {uid: None}


# --- a pod whose other claim has its device on another node -----------------------------------------------------------


BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
BY_LABEL = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


async def allocate_elsewhere(of: ClaimLab, claim: Json, pod: Json, term: Json | None) -> None:
    """To n1: its GPU, or by a selector a device of another driver, while somebody else has the GPU."""
    if term is None:
        assert await of.gate.allocate(of.lab, claim, {"n1/gpu-0": ""}, pod) is None
        return
    after = allocated(claim, {"n1/nic-0": ""}, pod, driver="nic.example")
    after["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
    await store(of.lab, after)


@pytest.mark.parametrize("is_taken", [False, True], ids=["that has a free GPU", "where somebody has the GPU"])
@pytest.mark.parametrize(
    ("device_class", "term"),
    [
        pytest.param("gpu.carrel.dev", None, id="a GPU"),
        pytest.param("nic", BY_NAME, id="a device of another driver"),
        pytest.param("nic", BY_LABEL, id="a device somewhere in a zone"),
    ],
)
async def test_nothing_is_taken_on_a_node_where_the_pod_cannot_use_what_its_other_claim_has(
    device_class: str, term: Json | None, is_taken: bool
) -> None:
    async with a_claim_lab(a_node("n1", 1), a_node("n2", 1)) as of:
        if term is not None:
            await of.lab.pod("busy", limits=WHOLE)
            await of.follow()
            await schedule(of.lab, of.replica, (N1,))
        if is_taken:
            await of.lab.pod("eves", limits=WHOLE, annotations=EVE)
            await of.follow()
            await schedule(of.lab, of.replica, (N2,))
        before = await of.lab.held()
        assert len(before) == (term is not None) + is_taken
        first = await of.claim("first", asking(device_class=device_class))
        await of.claim("second")
        await of.lab.book(gpus=2)
        pod = await a_booked_pod_that_waits(of, "first", "second")
        await allocate_elsewhere(of, first, pod, term)

        for _ in range(3):
            await of.follow()
            await of.controller.round()

        assert await allocated_to(of, "second") == []
        assert await handed_over(of) == set()
        assert (await of.lab.held()).keys() - before.keys() == (set() if term is not None else {"gpu-n1-0"})
        assert not any(record.kept_for for record in (await records(of)).values())


# --- whose a claim is -------------------------------------------------------------------------------------------------


async def test_a_claim_is_not_a_pods_because_its_maker_wrote_that_the_pod_owns_it() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        bobs = await of.lab.pod("bobs", annotations=ADA)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "bobs", "uid": bobs["metadata"]["uid"]}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": asking()}
        metadata = {"name": "mallorys", "ownerReferences": [owner]}
        claim = await of.lab.client.create(RESOURCE_CLAIMS, {**body, "metadata": metadata}, "lab")
        await of.pod("mallorys", EVE, claim="mallorys")
        await of.follow()

        user = of.replica.holders.pod_of(claim["metadata"]["uid"])
        assert user is not None
        assert user.metadata.name == "mallorys"
