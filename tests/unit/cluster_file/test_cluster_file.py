"""Reading a simulated cluster from a file; error messages name the line."""

import pytest

from carrel.cluster_file import read_cluster
from carrel.parsing import Malformed

GOOD = """\
nodes:
  - name: dgx-1
    labels: {zone: lab}
    gpus:
      - {count: 4, model: A100, memoryMiB: 81920, perIsland: 2, bandwidthGBps: 600}
      - {model: T4, memoryMiB: 16276, unusable: "unhealthy: XID 79"}
"""


def test_nodes_and_gpus_are_read() -> None:
    (node,) = read_cluster(GOOD, "cluster.yaml")

    assert (node.name, node.labels) == ("dgx-1", {"zone": "lab"})
    assert [(gpu.index, gpu.model, gpu.memory) for gpu in node.gpus] == [
        (0, "A100", 81920),
        (1, "A100", 81920),
        (2, "A100", 81920),
        (3, "A100", 81920),
        (4, "T4", 16276),
    ]
    islands = [gpu.island for gpu in node.gpus]
    assert islands[0] == islands[1] != islands[2] == islands[3]
    assert islands[4] == ""
    assert [gpu.unusable for gpu in node.gpus] == ["", "", "", "", "unhealthy: XID 79"]


def test_the_same_file_gives_the_same_uuids_and_each_gpu_its_own() -> None:
    first, second = read_cluster(GOOD, "a"), read_cluster(GOOD, "b")

    assert first == second
    assert len({gpu.uuid for gpu in first[0].gpus}) == 5


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "cluster.yaml: line 1 ($) is None", id="empty file"),
        pytest.param("nodes: []", "line 1 ($.nodes) is []", id="no nodes"),
        pytest.param("nodes: [", "cluster.yaml: line 1 is", id="not YAML"),
        pytest.param("nodes:\n  \x00", "cluster.yaml: line 2 is '\\x00'; expected YAML", id="a control character"),
        pytest.param(
            GOOD.replace("81920", "-5"),
            "cluster.yaml: line 5 ($.nodes[0].gpus[0].memoryMiB) is -5; expected a whole number, 1 or more",
            id="negative memory",
        ),
        pytest.param(GOOD.replace("81920", "lots"), "line 5 ($.nodes[0].gpus[0].memoryMiB) is 'lots'", id="no number"),
        pytest.param(GOOD.replace("count: 4", "cuont: 4"), "unknown field `cuont`", id="a misspelled field"),
        pytest.param(GOOD.replace("dgx-1", "DGX 1"), "line 2 ($.nodes[0].name) is 'DGX 1'", id="not a node's name"),
        pytest.param(GOOD + GOOD.removeprefix("nodes:\n"), "line 7 ($.nodes[1].name) is 'dgx-1'", id="a name twice"),
        pytest.param("nodes: 3", "line 1 ($.nodes) is 3", id="not a list"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(Malformed) as refused:
        read_cluster(text, "cluster.yaml")

    assert complaint in str(refused.value)


DIVIDED = """\
nodes:
  - name: dgx-1
    labels: {nvidia.com/mig.strategy: single}
    gpus: [{count: 2, model: A100, memoryMiB: 81920, perIsland: 2, mig: [1g.10gb, 1g.10gb]}]
"""


def test_gpus_may_be_divided_into_mig_slices() -> None:
    (node,) = read_cluster(DIVIDED, "cluster.yaml")

    assert [(gpu.label, gpu.model, gpu.memory, gpu.island) for gpu in node.gpus] == [
        (label, "A100-MIG-1g.10gb", 10240, "") for label in ("0:0", "0:1", "1:0", "1:1")
    ]
    assert all(gpu.slice and gpu.slice.is_gpu for gpu in node.gpus)
    with pytest.raises(Malformed, match=r"gpus\[0\]\.mig"):
        read_cluster(DIVIDED.replace("1g.10gb]", "large]"), "cluster.yaml")
