"""Traces in all forms; of a bad one, the line and the reason."""

from fractions import Fraction
from pathlib import Path

import pytest

from carrel.cli.simulation_files import read_nodes, read_trace
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import WHOLE, GpuSelector, Memory, Portion
from carrel.parsing import Malformed
from carrel.simulation import openb, trace

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,96000,393216,8,G2\nn2,32000,262144,0,\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
TIMED = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"


def a_file(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_openbs_nodes_without_a_gpu_are_left_out() -> None:
    cluster = openb.read_nodes(NODES, "nodes.csv")

    assert [(node.name, len(node.gpus)) for node in cluster.nodes] == [("n1", 8)]
    assert cluster.machines == {"n1": MachineRoom(96_000, 393_216)}


def test_openbs_pods_ask_for_nothing_a_part_whole_gpus_or_certain_models(tmp_path: Path) -> None:
    text = PODS + "a,4000,1024,0,0,\nb,4000,1024,1,470,\nc,8000,2048,8,1000,\nd,1,1,1,1000,V100M16|V100M32\n"

    found = read_trace(a_file(tmp_path, "pods.csv", text))

    a, b, c, d = found.workload.pods
    assert (found.is_openb, found.has_times) == (True, False)
    assert a.request is None
    assert b.request is not None
    assert (b.request.amount, b.machine) == (Portion(Fraction(47, 100)), MachineRoom(4000, 1024))
    assert c.request is not None
    assert (c.request.gpus, c.request.amount) == (8, WHOLE)
    assert d.request is not None
    assert d.request.selector == GpuSelector(("V100M16", "V100M32"))


def test_carrels_own_form_in_yaml(tmp_path: Path) -> None:
    text = """pods:
- {name: train, owner: ada, arrives_hours: 1, lasts_hours: 2, gpus: 2, model: A100, cpu_cores: 8, memory_gib: 32}
- {name: share, gpu_memory_mib: 8138, count: 2}
bookings:
- {user: ada, model: A100, gpus: 2, asked_hours: 0, start_hours: 24, lasts_hours: 72}
"""
    found = read_trace(a_file(tmp_path, "trace.yaml", text))

    workload = found.workload
    train, first, second = workload.pods
    assert (found.is_openb, found.has_times) == (False, True)
    assert (train.arrives_s, train.lasts_s, train.machine) == (3600.0, 7200.0, MachineRoom(8000, 32 * 1024))
    assert (first.name, second.name, second.lasts_s) == ("share-0", "share-1", None)
    assert second.request is not None
    assert second.request.amount == Memory(8138)  # type: ignore[arg-type] # MiB
    assert workload.wishes[0].start_s == 24 * 3600


def test_carrels_own_form_in_csv(tmp_path: Path) -> None:
    found = read_trace(a_file(tmp_path, "t.csv", "name,gpus,gpu_part\na,1,0.5\nb,0,\n"))

    assert [pod.gpus() for pod in found.workload.pods] == [0.5, 0.0]


def test_openbs_pods_run_as_long_as_they_ran_there(tmp_path: Path) -> None:
    text = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
        "waited,1,1,1,1000,100,700,400\nnever-got-it,1,1,1,1000,100,700,\nruns-on,1,1,1,1000,100,,400\n"
    )

    found = read_trace(a_file(tmp_path, "pods.csv", text))

    assert found.has_times
    assert [(pod.arrives_s, pod.lasts_s) for pod in found.workload.pods] == [(100, 300), (100, 600), (100, None)]


@pytest.mark.parametrize("name", ["t.csv", "T.CSV"])
def test_a_file_of_excel_is_read(tmp_path: Path, name: str) -> None:
    excels = "\ufeffname,gpus\r\na,1\r\n"

    assert [pod.name for pod in read_trace(a_file(tmp_path, name, excels)).workload.pods] == ["a"]
    assert [node.name for node in read_nodes(a_file(tmp_path, "N.CSV", "\ufeff" + NODES)).nodes] == ["n1"]


def test_a_yaml_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    nodes = "\ufeffnodes: [{name: n1, gpus: [{model: A100, memoryMiB: 81920}]}]"

    assert read_trace(a_file(tmp_path, "t.yaml", "\ufeffpods: [{name: a}]")).workload.pods[0].name == "a"
    assert read_nodes(a_file(tmp_path, "n.yaml", nodes)).gpus == 1


@pytest.mark.parametrize("nothing", ["null", "~", ""])
def test_null_is_nothing_but_the_word_in_quotes_is_a_model(tmp_path: Path, nothing: str) -> None:
    text = f"pods:\n- {{name: a, gpus: 1, model: {nothing}}}\n- {{name: b, gpus: 1, model: 'null'}}\n"

    requests = [pod.request for pod in read_trace(a_file(tmp_path, "t.yaml", text)).workload.pods]

    assert [request.model for request in requests if request is not None] == ["", "null"]


@pytest.mark.parametrize(
    ("name", "text", "line", "reason"),
    [
        pytest.param("p.csv", PODS + "a,1,1,1,1001,\n", "line 2, gpu_milli", "1 to 1000", id="more than a GPU"),
        pytest.param("p.csv", PODS + "a,1,1,1,1,\na,1,1,1,1,\n", "line 3, name", "line 2 has it", id="a name twice"),
        pytest.param("p.csv", PODS + "a,x,1,1,1,\n", "line 2, cpu_milli", "a number", id="no number"),
        pytest.param("p.csv", PODS + "a,1,1\n", "line 2", "6 columns", id="too few columns"),
        pytest.param("p.csv", PODS, "the file", "at least one", id="no pod"),
        pytest.param("p.csv", "x,y\n1,2\n", "line 1", "name", id="another header"),
        pytest.param("t.yaml", "pods:\n- {name: a, gpus: 1.5}\n", "line 2, gpus", "a whole number", id="half a number"),
        pytest.param("t.yaml", "pods:\n- {name: a, gpu: 1}\n", "line 2", "one of", id="an unknown word"),
        pytest.param("t.yaml", "pods:\n- {name: a}\nnodes: []\n", "line 3", "pods or bookings", id="an unknown part"),
        pytest.param("t.yaml", "pods:\n- {name: a, gpu_part: 2}\n", "line 2, gpu_part", "at most 1", id="two of one"),
        pytest.param("t.yaml", "pods: [\n", "line 2", "YAML", id="no YAML"),
        pytest.param("t.yaml", "pods:\n- {name: a}\npods:\n- {name: b}\n", "line 3", "once", id="pods twice"),
        pytest.param("t.yaml", "pods:\n- name: a\n  gpus: 1\n  gpus: 2\n", "line 4", "once", id="a column twice"),
        pytest.param("t.csv", "name,gpus,gpus\na,1,2\n", "line 1", "once", id="a column twice in the header"),
        pytest.param("t.yaml", "pods:\n- {name: a, cpu_cores: 1e306}\n", "line 2, cpu_cores", "1,000,000", id="CPU"),
        pytest.param("t.yaml", "pods:\n- {name: a, memory_gib: 1e308}\n", "line 2, memory_gib", "1,000,000", id="GiB"),
        pytest.param("t.yaml", "pods:\n- {name: a, gpus: 1e300}\n", "line 2, gpus", "at most", id="all GPUs there are"),
        pytest.param("p.csv", TIMED + "a,1,1,1,1,9,8,\n", "line 2, deletion_time", "after", id="ends before it begins"),
        pytest.param("p.csv", TIMED + "a,1,1,1,1,1e11,,\n", "line 2, creation_time", "at most", id="after the end"),
        pytest.param("t.yaml", "bookings:\n- {user: a}\n", "line 2, model", "needs it", id="a booking of nothing"),
    ],
)
def test_a_bad_trace_is_refused_with_the_line_and_the_reason(
    tmp_path: Path, name: str, text: str, line: str, reason: str
) -> None:
    with pytest.raises(Malformed) as refused:
        read_trace(a_file(tmp_path, name, text))

    assert f"{name}: {line}" in str(refused.value)
    assert reason in str(refused.value)


def test_more_pods_than_can_be_simulated_are_refused_with_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MOST_PODS", 1000)
    many = "pods:\n" + "".join(f"- {{name: p{number}, count: 100}}\n" for number in range(11))

    with pytest.raises(Malformed, match=r"t\.yaml: line 12, count.*at most 1,000 pods in all, and these are 1,100"):
        read_trace(a_file(tmp_path, "t.yaml", many))


def test_bad_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match=r"nodes\.csv: line 3, gpu is '-1'"):
        read_nodes(a_file(tmp_path, "nodes.csv", NODES.replace("262144,0", "262144,-1")))
    with pytest.raises(Malformed, match=r"nodes\.csv: line 2, gpu is '1000000000'; expected at most 1024"):
        read_nodes(a_file(tmp_path, "nodes.csv", NODES.replace("393216,8", "393216,1000000000")))
