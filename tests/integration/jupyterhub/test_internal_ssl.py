"""A hub with `internal_ssl`: its notebooks have certificates in a Secret, which the successor needs as much."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from carrel.kubernetes.cluster import NotFound
from carrel.kubernetes.objects.resources import SECRETS
from tests.integration.jupyterhub.test_with_hand_over import service
from tests.kit.gpus import a_node
from tests.kit.jupyterhub.hub import HubBed, a_startable, running_hub
from tests.kit.jupyterhub.hub_files import NAMESPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[HubBed]:
    async with running_hub([a_node("a", gpus=1, model="A")], internal_ssl=True) as running:
        running.startable.update(a_startable({"A": 1}))
        yield running


async def test_the_successor_has_the_certificates_of_the_first_pod_and_they_end_with_it(bed: HubBed) -> None:
    first = await bed.start_and_wait("ada@lab.example", "gpu-a-1")
    name = first["metadata"]["name"]
    told = {each["name"]: each.get("value", "") for each in first["spec"]["containers"][0]["env"]}
    assert told["JUPYTERHUB_SERVICE_URL"].startswith("https:")
    (secret,) = [each["secret"]["secretName"] for each in first["spec"]["volumes"] if "secret" in each]
    await bed.book("bob@lab.example", "A")
    await bed.start_and_wait("bob@lab.example", "gpu-a-1")
    await bed.answers("ada@lab.example")
    successor = await bed.pod("ada@lab.example")
    assert successor["metadata"]["uid"] != first["metadata"]["uid"]

    async def are_given() -> bool:
        owned = (await bed.client.get(SECRETS, secret, NAMESPACE), await service(bed, name))
        owners = [[owner["uid"] for owner in each["metadata"].get("ownerReferences", ())] for each in owned]
        return owners == [[successor["metadata"]["uid"]]] * 2

    await bed.wait_for("its Secret and its Service belong to the successor", are_given)
    await bed.stop_and_wait("ada@lab.example")

    async def are_gone() -> bool:
        try:
            await bed.client.get(SECRETS, secret, NAMESPACE)
        except NotFound:
            return not await service(bed, name)
        return False

    await bed.wait_for("they are gone with it", are_gone)
    await bed.stop_and_wait("bob@lab.example")
