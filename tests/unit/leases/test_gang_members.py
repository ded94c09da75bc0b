"""The members of a gang are found by its name, among pods that may be members of others."""

import msgspec
import pytest

from carrel.dialects.interface import PodRequest
from carrel.dialects.registry import DIALECTS
from carrel.kubernetes.objects.kinds import Pod
from carrel.leases.gang_members import GangMemberLookup
from carrel.ledger.requests import Gang
from tests.kit.gpus import whole


def a_pod(name: str, gang: str) -> Pod:
    metadata = {"name": name, "namespace": "lab", "uid": f"uid-{name}", "annotations": {"gang": gang}}
    return msgspec.convert({"metadata": metadata}, Pod)


PODS = {
    "job": [a_pod("a", "lab/job"), a_pod("b", "lab/job"), a_pod("c", "lab/job@one"), a_pod("d", "lab/job@two")],
    "job@one": [a_pod("e", "lab/job@one")],
}


@pytest.mark.parametrize(
    ("gang", "names"),
    [
        pytest.param("lab/job", ["a", "b"], id="the only gang of its name"),
        pytest.param("lab/job@two", ["d"], id="one of several"),
        pytest.param("lab/job@one", ["c", "e"], id="one of several, and a name with an @ of its own"),
        pytest.param("lab/none", [], id="no pod names it"),
    ],
)
def test_a_gang_has_the_pods_that_say_so(gang: str, names: list[str]) -> None:
    asked_for = []

    def read_request(pod: Pod) -> PodRequest:
        asked_for.append(pod.metadata.name)
        return PodRequest(DIALECTS[0], whole(gang=Gang(pod.metadata.annotations["gang"], 2)))

    lookup = GangMemberLookup(lambda namespace, name: PODS.get(name, []) if namespace == "lab" else [], read_request)

    assert [holder.name for holder, _ in lookup(Gang(gang, 2)).waiting] == names
    assert len(asked_for) <= 5, "no pod is read twice"
