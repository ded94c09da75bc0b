"""The members of a gang are found by its name, among pods that may be members of others."""

from typing import Any

import pytest

from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.coverage import Covered
from carrel.ledger.requests import Gang
from tests.kit.reviews import a_state


def a_pod(name: str, gang: str, part: str = "") -> dict[str, Any]:
    """`part`: which of several gangs of one name it belongs to, as a Deployment's pods do."""
    labels = {"pod-template-hash": part} if part else {}
    notes = {"pod-group-name": gang, "gpu-fraction": "0.5"}
    metadata = {"name": name, "namespace": "lab", "uid": f"uid-{name}", "annotations": notes, "labels": labels}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}


GANGS = [
    a_pod("a", "job"),
    a_pod("b", "job"),
    a_pod("c", "job", "one"),
    a_pod("c2", "job", "one"),
    a_pod("d", "job", "two"),
    a_pod("d2", "job", "two"),
    a_pod("e", "job@one"),
    a_pod("e2", "job@one"),
    a_pod("f", "other"),
]


@pytest.mark.parametrize(
    ("gang", "names"),
    [
        pytest.param("lab/job", ["a", "b"], id="the only gang of its name"),
        pytest.param("lab/job@two", ["d", "d2"], id="one of several"),
        pytest.param("lab/job@one", ["c", "c2", "e", "e2"], id="one of several, and a name with an @ of its own"),
        pytest.param("lab/none", [], id="no pod names it"),
    ],
)
def test_a_gang_has_the_pods_that_say_so(gang: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    state = a_state({PODS: GANGS})
    look, read = state.requests.as_admitted, list[str]()

    def noted(pod: Pod, covered: Covered | None = None) -> object:
        read.append(pod.metadata.name)
        return look(pod, covered)

    monkeypatch.setattr(state.requests, "as_admitted", noted)

    assert [holder.name for holder, _ in state.gang_members(Gang(gang, 2)).waiting] == names
    assert len(read) == len(set(read)), "no pod is read twice"
    assert "f" not in read, "nor is one that names another gang"
