"""`--add`: what is read, and what it does to a cluster."""

import pytest

from carrel.cli.simulation_comparison import added_gpus, unknown_models, with_more
from carrel.parsing import Malformed
from carrel.simulation.workload import SimulatedCluster
from tests.kit.gpus import A6000, a_node
from tests.unit.simulation.test_engine import a_cluster


def test_more_gpus_are_further_nodes() -> None:
    cluster = with_more(a_cluster(nodes=1), added_gpus("12xA100:81920"))

    assert [(node.name, len(node.gpus)) for node in cluster.nodes] == [("n0", 2), ("added-0", 8), ("added-1", 4)]


def test_gpus_of_several_models_are_joined_by_commas_and_all_are_named() -> None:
    groups = added_gpus("8xA100:81920, 2xT4:16384")

    added = with_more(a_cluster(nodes=1), groups).nodes[1:]
    assert [str(group) for group in groups] == ["8xA100:81920", "2xT4:16384"]
    assert [{(gpu.model, gpu.memory) for gpu in node.gpus} for node in added] == [{("A100", 81920)}, {("T4", 16384)}]


def test_an_added_node_never_has_the_name_of_another() -> None:
    cluster = SimulatedCluster((a_node("added-0"), a_node("added-2")))

    names = [node.name for node in with_more(cluster, added_gpus("8xA100:81920,8xT4:16384")).nodes]

    assert names == ["added-0", "added-2", "added-1", "added-3"]
    again = with_more(with_more(cluster, added_gpus("1xT4:1")), added_gpus("1xT4:1"))
    assert len({node.name for node in again.nodes}) == 4
    assert len({gpu.uuid for node in again.nodes for gpu in node.gpus}) == again.gpus


def test_models_that_the_cluster_does_not_have_are_named_with_those_that_it_has() -> None:
    cluster = SimulatedCluster((a_node("n1"),))

    assert unknown_models(cluster, added_gpus(f"1x{A6000}:16276")) == ""
    assert unknown_models(cluster, added_gpus("1xT4:16384")) == (
        f"New models: the cluster has no T4 yet. It has {A6000}."
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("A100", id="no number"),
        pytest.param("8xA:B:5", id="two colons"),
        pytest.param("8xA100:81920,", id="nothing after the comma"),
        pytest.param("8xA100:81920,2xT4", id="the second without memory"),
        pytest.param("0xA100:81920", id="no GPU"),
        pytest.param("8xA100:0", id="no memory"),
        pytest.param("8x :5", id="no model"),
        pytest.param("8x\udcff:5", id="a model that cannot be written"),
        pytest.param("10001xA100:1", id="too many"),
        pytest.param("6000xA100:1,6000xT4:1", id="too many in all"),
        pytest.param(f"{'9' * 5000}xA100:1", id="a number of thousands of digits"),
        pytest.param("1xA100:99999999", id="more memory than a GPU has"),
        pytest.param("", id="nothing"),
    ],
)
def test_what_cannot_be_added_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="--add"):
        added_gpus(text)
