"""A booked pod that does not fit gets a card: from the fewest pods without a booking, and from nobody else."""



from tests.kit.gpus import a_node
from tests.kit.lab import a_lab
from tests.kit.tiers import (
    Terminator,
    a_booked_one_in_vain,
    an_opportunist,
    pods_of,
    settle,
)


async def test_a_booked_pod_gets_the_card_and_the_other_goes_on_without_one() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        await an_opportunist(lab, carrel, "train")
        urgent = await a_booked_one_in_vain(lab, "urgent")

        await settle(lab, Terminator(carrel))

        assert await lab.held() == {"gpu-n1-0": {urgent["metadata"]["uid"]: None}}
        pods = await pods_of(lab)
        assert pods.keys() == {"train", "urgent"}
        assert pods["urgent"].spec.node_name == "n1"
        assert '"why":"revoked"' in pods["train"].metadata.annotations["carrel.dev/handed-over"]
        assert not pods["train"].spec.containers[0].resources.limits
        assert carrel.books.ledger.kept_for(urgent["metadata"]["uid"]) == frozenset()


async def test_nobody_loses_a_card_when_another_will_do() -> None:
    async with a_lab([a_node("n1", cards=2)]) as lab, lab.replica() as carrel:
        train = await an_opportunist(lab, carrel, "train")
        await a_booked_one_in_vain(lab, "urgent")

        await settle(lab, Terminator(carrel))

        pods = await pods_of(lab)
        assert pods["train"].metadata.uid == train["metadata"]["uid"]
        assert pods["urgent"].spec.node_name == "n1"
