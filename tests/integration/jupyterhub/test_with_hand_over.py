"""What hub and controller do together about a notebook that loses its GPU, or finds none."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from carrel.kubernetes.cluster import Json, MergePatch, NotFound, Selection
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import CONFIG_MAPS, NAMESPACES, PODS, Resource
from tests.kit.gpus import a_node
from tests.kit.jupyterhub.hub import HubBed, a_startable, running_hub
from tests.kit.jupyterhub.hub_files import NAMESPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVICES: Resource[Any] = Resource(Object, "", "v1", "services", "Service")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[HubBed]:
    nodes = [a_node("a", gpus=1, model="A"), a_node("b", gpus=1, model="B"), a_node("c", gpus=2, model="C")]
    # A pod for which there is room is left to the scheduler, however short the wait.
    async with running_hub(nodes, tiers="waitBeforeCpu: 1s", services_enabled=True) as running:
        running.startable.update(a_startable({"A": 1, "B": 1, "C": 2}))
        yield running


async def test_the_service_of_a_revoked_notebook_survives(bed: HubBed) -> None:
    first = await bed.start_and_wait("ada@lab.example", "gpu-a-1")
    name = first["metadata"]["name"]
    await bed.book("ann@lab.example", "A")
    await bed.start_and_wait("ann@lab.example", "gpu-a-1")
    await bed.answers("ada@lab.example")
    successor = await bed.pod("ada@lab.example")

    async def is_given() -> bool:
        owners = (await service(bed, name)).get("metadata", {}).get("ownerReferences", [])
        return [owner["uid"] for owner in owners] == [successor["metadata"]["uid"]]

    async def is_gone() -> bool:
        return not await service(bed, name)

    await bed.wait_for("the Service belongs to the successor", is_given)
    await bed.stop_and_wait("ada@lab.example")
    await bed.wait_for("it ends with the successor", is_gone)
    await bed.stop_and_wait("ann@lab.example")


async def test_a_notebook_that_is_stopped_while_it_is_ended_does_not_come_back(bed: HubBed) -> None:
    first = await bed.start_and_wait("bea@lab.example", "gpu-b-1")
    await bed.book("ben@lab.example", "B")
    bed.kubelets.may_remove.clear()
    await bed.start("ben@lab.example", "gpu-b-1")

    async def is_ending() -> bool:
        return "deletionTimestamp" in (await bed.pod("bea@lab.example"))["metadata"]

    await bed.wait_for("Carrel ends the pod", is_ending)
    await bed.stop("bea@lab.example")

    async def is_withdrawn() -> bool:
        return "carrel.dev/no-successor" in (await bed.pod("bea@lab.example"))["metadata"]["annotations"]

    await bed.wait_for("the hub says so", is_withdrawn)
    bed.kubelets.may_remove.set()

    await bed.is_gone("bea@lab.example")
    await bed.answers("ben@lab.example")  # the GPU is free, so the hand-over is over
    assert not await bed.pods("bea@lab.example")
    assert bed.kubelets.started("jupyter-bea") == {first["metadata"]["uid"]}
    await bed.stop_and_wait("ben@lab.example")


async def test_the_progress_page_goes_on_saying_who_gives_the_gpu_back(bed: HubBed) -> None:
    await bed.start_and_wait("kim@lab.example", "gpu-b-1")
    await bed.book("kai@lab.example", "B")
    bed.kubelets.may_remove.clear()
    await bed.start("kai@lab.example", "gpu-b-1")

    messages: list[str] = []
    async for message in bed.progress("kai@lab.example"):
        messages.append(message)
        if sum("has to end by" in each for each in messages) >= 3:  # the Event, and twice more
            break
    bed.kubelets.may_remove.set()
    await bed.answers("kai@lab.example")

    assert "jupyter-kim" in messages[-1] and "it is ending now" in messages[-1]
    for user in ("kim@lab.example", "kai@lab.example"):
        await bed.stop_and_wait(user)


async def test_of_four_students_two_get_a_gpu_and_two_a_notebook_on_cpu(bed: HubBed) -> None:
    students = [f"student-{number}@lab.example" for number in range(4)]

    for student in students:
        await bed.start(student, "gpu-c-1")
    for student in students:
        await bed.answers(student)

    pods = [await bed.pod(student) for student in students]
    with_gpu = {pod["metadata"]["uid"] for pod in pods if "carrel.dev/tier" in pod["metadata"]["annotations"]}
    told = [pod for pod in pods if pod["metadata"]["annotations"].get("carrel.dev/runs-without-gpu")]
    assert await bed.holders("c") == with_gpu
    assert (len(with_gpu), len(told)) == (2, 2)
    for student in students:
        await bed.stop_and_wait(student)


async def test_a_spawn_that_is_cancelled_while_its_pod_goes_to_cpu_leaves_nothing(bed: HubBed) -> None:
    holder = a_gpu_pod("holder")
    await bed.client.create(PODS, holder, NAMESPACE)
    await bed.wait_for("no GPU is free", lambda: bed.holders("a"))
    await say_when_full(bed, "wait")
    await bed.start("eva@lab.example", "gpu-a-1")

    async def waits() -> bool:
        pods = await bed.pods("eva@lab.example")
        return bool(pods) and "carrel.dev/tier" in pods[0]["metadata"]["annotations"]

    await bed.wait_for("the notebook waits for a GPU", waits)
    name = (await bed.pod("eva@lab.example"))["metadata"]["name"]
    # A pod without a node would be gone at once.
    await bed.client.patch(PODS, name, MergePatch({"metadata": {"finalizers": ["lab.example/held"]}}), NAMESPACE)
    await say_when_full(bed, "cpu")

    async def is_ending() -> bool:
        return "deletionTimestamp" in (await bed.pod("eva@lab.example"))["metadata"]

    await bed.wait_for("Carrel hands the pod over to CPU", is_ending)
    await bed.stop("eva@lab.example")

    async def is_withdrawn() -> bool:
        return "carrel.dev/no-successor" in (await bed.pod("eva@lab.example"))["metadata"]["annotations"]

    await bed.wait_for("the hub says that nobody wants it", is_withdrawn)
    await bed.client.patch(PODS, name, MergePatch({"metadata": {"finalizers": None}}), NAMESPACE)

    async def is_over() -> bool:
        records = (await bed.client.list(CONFIG_MAPS, Selection("carrel"))).items
        return not any(each.metadata.name.startswith("handover-") for each in records)

    await bed.is_gone("eva@lab.example")
    await bed.wait_for("the hand-over is over", is_over)
    assert not await bed.pods("eva@lab.example")
    assert not bed.kubelets.started("jupyter-eva")
    await bed.client.delete(PODS, "holder", NAMESPACE)


async def say_when_full(bed: HubBed, what: str) -> None:
    """Returns when the webhook has read it. No GPU of model A is free."""
    note = {"metadata": {"annotations": {"carrel.dev/when-full": what}}}
    await bed.client.patch(NAMESPACES, NAMESPACE, MergePatch(note))
    probe = a_gpu_pod("probe", **{"hub.jupyter.org/username": "probe"})

    async def is_read() -> bool:
        admitted = await bed.client.create(PODS, probe, NAMESPACE, dry_run=True)
        return ("nvidia.com/gpu" in str(admitted["spec"]["containers"][0]["resources"])) is (what == "wait")

    await bed.wait_for(f"the webhook knows that a full cluster means {what}", is_read)


def a_gpu_pod(name: str, **notes: str) -> Json:
    """It asks for the GPU of model A."""
    container = {"name": "main", "image": "work", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    metadata = {"name": name, "annotations": {"carrel.dev/gpu-model": "A", **notes}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


async def service(bed: HubBed, name: str) -> Json:
    try:
        return await bed.client.get(SERVICES, name, NAMESPACE)
    except NotFound:
        return {}
