"""`carrel simulate`: options that contradict each other, limits, and the files that it writes."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from carrel.cli.simulate import SimulateSettings, simulate
from carrel.simulation.over_time import run_over_time

NODES = """nodes:
- {name: a, gpus: [{count: 2, model: A100, memoryMiB: 81920}]}
- {name: added-0, gpus: [{count: 2, model: T4, memoryMiB: 16384}]}
"""
PODS = """pods:
- {name: train, owner: ada, lasts_hours: 10, gpus: 2, model: A100, count: 3}
- {name: share, gpu_memory_mib: 8138, lasts_hours: 5}
bookings:
- {user: eve, model: A100, lasts_hours: 72, start_hours: 24}
"""
OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
TIMED = f"{OPENB},creation_time,deletion_time,scheduled_time\n"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    files = {"nodes.yaml": NODES, "pods.yaml": PODS, "tiny.yaml": "pods:\n- {name: a, gpu_memory_mib: 1}\n"}
    files["openb.csv"] = f"{OPENB}\na,0,0,1,1000\nb,0,0,1,500\n"
    files["timed.csv"] = TIMED + "a,0,0,2,1000,0,36000,0\nb,0,0,2,1000,0,36000,0\nc,0,0,2,1000,0,36000,0\n"
    files["bookings.yaml"] = "bookings:\n- {user: eve, model: A100, lasts_hours: 72}\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def simulated(trace: str = "pods.yaml", **options: Any) -> None:
    options = {"nodes": Path("nodes.yaml"), "processes": 1, **options}
    simulate(SimulateSettings(trace=Path(trace), **options))


def table(text: str) -> list[dict[str, str]]:
    head, *rows = ([cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def refused(capsys: pytest.CaptureFixture[str], run: Callable[[], None], code: int = 2) -> str:
    with pytest.raises(typer.Exit) as ended:
        run()
    assert ended.value.exit_code == code
    return capsys.readouterr().err


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param({"snapshot": Path("x")}, "a trace beside it would have no effect", id="a trace and a snapshot"),
        pytest.param({"seeds": 3}, "--seeds: pods come by the clock", id="orders by the clock"),
        pytest.param({"seeds": 3, "arrival": 0.0}, "--seeds: pods come by the clock", id="orders by the clock, asked"),
        pytest.param({"cooldown_days": 3.0, "arrival": 1.0}, "--cooldown-days: pods come", id="rules, no bookings"),
        pytest.param({"max_gpus": 3, "trace": "openb.csv"}, "--max-gpus: pods come", id="openb's have none by default"),
        pytest.param({"policies": ","}, "a policy is ','", id="a comma for policies"),
        pytest.param({"policies": ""}, "a policy is ''", id="no policy"),
        pytest.param({"policies": "carrel,best"}, "a policy is 'best'", id="an unknown policy"),
        pytest.param({"add": ""}, "COUNTxMODEL:MIB", id="no GPU to add"),
        pytest.param({"arrival": float("inf")}, "pods never leave", id="pods without end"),
        pytest.param({"arrival": float("nan")}, "pods never leave", id="no number of pods"),
        pytest.param({"arrival": 1e9}, "pods never leave", id="too many times the GPUs"),
        pytest.param({"arrival": 1000.0, "trace": "tiny.yaml"}, "at most 1,000,000 pods in a run", id="tiny pods"),
        pytest.param({"arrival": 1.0, "trace": "bookings.yaml"}, "at least one pod", id="no pod to arrive"),
        pytest.param({"arrival": 0.0, "trace": "openb.csv"}, "creation_time", id="no times, no clock"),
        pytest.param({"cooldown_days": float("inf")}, "0 to 3650", id="a cooldown without end"),
        pytest.param({"cooldown_days": float("nan")}, "0 to 3650", id="no number of days"),
        pytest.param({"idle_hours": 4.0}, "--idle-hours: a trace does not say", id="idle pods of a trace"),
        pytest.param(
            {"idle_hours": 4.0, "arrival": 1.0, "seeds": 2}, "It needs a snapshot (--from)", id="idle, in random order"
        ),
        pytest.param({"cooldown_days": 1e6}, "0 to 3650", id="a cooldown of centuries"),
    ],
)
def test_options_that_contradict_or_never_end_are_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str], options: dict[str, Any], reason: str
) -> None:
    assert reason in refused(capsys, lambda: simulated(**options))


@pytest.mark.usefixtures("lab")
def test_nodes_beside_a_snapshot_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    beside = SimulateSettings(snapshot=Path("lab.json"), nodes=Path("nodes.yaml"))

    assert "--nodes beside it would have no effect" in refused(capsys, lambda: simulate(beside))


@pytest.mark.usefixtures("lab")
def test_a_policy_that_is_given_twice_is_run_once(capsys: pytest.CaptureFixture[str]) -> None:
    simulated(policies="carrel, carrel,fgd")

    assert [row["POLICY"] for row in table(capsys.readouterr().out)] == ["carrel", "fgd"]


@pytest.mark.usefixtures("lab")
def test_added_gpus_are_compared_and_all_named_and_new_models_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    simulated(add="2xA100:81920,1xH100:81559")

    said = capsys.readouterr()
    assert [row["CASE"] for row in table(said.out)] == ["as it is", "with 2xA100:81920, 1xH100:81559"]
    assert said.err == "New models: the cluster has no H100 yet. It has A100, T4.\n"


@pytest.mark.usefixtures("lab")
def test_in_random_order_the_same_pods_arrive_on_the_larger_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    simulated("openb.csv", arrival=2.0, add="8xA100:163840", seeds=1)

    said = capsys.readouterr()
    before, after = table(said.out)
    arrived = [int(row["PLACED"]) + int(row["DROPPED"]) for row in (before, after)]
    assert (before["CASE"], after["CASE"]) == ("as it is", "with 8xA100:163840")
    assert arrived[0] == arrived[1]
    assert int(before["DROPPED"]) > int(after["DROPPED"]) == 0


@pytest.mark.usefixtures("lab")
def test_bookings_that_are_left_out_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    simulated(arrival=1.0, seeds=1, policies="carrel")

    assert capsys.readouterr().err == "With --arrival, bookings are left out: 1 here.\n"


@pytest.mark.usefixtures("lab")
def test_openbs_pods_wait_by_the_clock_if_arrival_is_zero(capsys: pytest.CaptureFixture[str]) -> None:
    simulated("timed.csv", arrival=0.0, policies="carrel")

    (row,) = table(capsys.readouterr().out)
    assert (row["PLACED"], row["WAITED: no GPU free (h)"]) == ("3", "3.33"), "one of three waits for ten hours"


# --- idle GPUs -------------------------------------------------------------------------------------------------------


def a_snapshot(**more: Any) -> dict[str, Any]:
    """One GPU, held by `pod-1`; `pod-2` waits for it."""
    request = {"gpus": 1, "part": "1"}
    holds = {"name": "pod-1", "arrivesHours": -9, "owner": "user-1", "request": request, "node": "node-1", "held": [0]}
    waits = {"name": "pod-2", "arrivesHours": -1, "owner": "user-2", "request": request}
    node = {"name": "node-1", "gpus": [{"index": 0, "model": "T4", "memoryMiB": 16384}]}
    document = {"form": "carrel-snapshot/3", "taken": "2026-11-17T04:00:00Z", "nodes": [node], "bookings": []}
    return {**document, "pods": [{**holds, **more}, waits]}


def from_snapshot(lab: Path, document: dict[str, Any], **options: Any) -> None:
    (lab / "lab.json").write_text(json.dumps(document))
    simulate(SimulateSettings(snapshot=Path("lab.json"), processes=1, **options))


def test_what_if_idle_gpus_came_back(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from_snapshot(lab, a_snapshot(idleHours=3), idle_hours=4.0)

    said = capsys.readouterr()
    before, after = table(said.out)
    assert (before["CASE"], after["CASE"]) == ("as it is", "idle GPUs back after 4 h")
    assert (before["GAVE BACK"], before["WAITING"], before["WAIT p50 (h)"]) == ("0", "1", "1344.00")
    assert (after["GAVE BACK"], after["WAITING"], after["WAIT p50 (h)"]) == ("1", "0", "1.00")
    assert (after["BACK: idle (GPU·h)"], after["BACK: in use (GPU·h)"]) == ("1343.0", "0.0")
    assert said.err == "The snapshot has no past use: pods that are idle stay so, and the others are never idle.\n"


def test_other_questions_have_the_columns_that_they_had(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from_snapshot(lab, a_snapshot(idleHours=3), add="1xT4:16384")

    assert not {
        column for row in table(capsys.readouterr().out) for column in row if "BACK" in column or "p50" in column
    }


def test_pods_of_which_nothing_is_known_are_said_to_keep_their_gpus(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from_snapshot(lab, a_snapshot(), idle_hours=0.5)

    said = capsys.readouterr()
    assert said.err == "1 of 1 pods with GPUs keep them: nobody knows whether they are idle.\n"
    assert said.out.endswith("The change makes no difference for these pods and bookings.\n")


def test_idle_pods_in_random_order_are_refused(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why = refused(capsys, lambda: from_snapshot(lab, a_snapshot(), idle_hours=4.0, arrival=1.0))

    assert "--idle-hours: pods come in random order here, without bookings. It needs --arrival 0." in why


@pytest.mark.parametrize("hours", [0.0, 0.49, -1.0, 1e6, float("inf"), float("nan")])
def test_hours_that_make_no_pod_idle_are_refused(lab: Path, capsys: pytest.CaptureFixture[str], hours: float) -> None:
    why = refused(capsys, lambda: from_snapshot(lab, a_snapshot(), idle_hours=hours))

    assert "--idle-hours: the value is" in why
    assert "0.5 to 87600" in why


# --- the files -------------------------------------------------------------------------------------------------------


def no_run(*_: object) -> None:
    raise AssertionError("a run has begun")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param({"csv": "."}, "this is a folder", id="a folder"),
        pytest.param({"svg": "nowhere/x.svg"}, "a folder that exists", id="in a folder that does not exist"),
        pytest.param({"csv": "pods.yaml"}, "that of the trace", id="the trace"),
        pytest.param({"svg": "link.yaml"}, "that of --nodes", id="the nodes, by another name"),
        pytest.param({"csv": "x", "svg": "./x"}, "that of --csv", id="both the same"),
        pytest.param({"csv": "x" * 300}, "File name too long", id="a name that is too long"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_the_first_run(
    lab: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    reason: str,
) -> None:
    (lab / "link.yaml").hardlink_to(lab / "nodes.yaml")
    monkeypatch.setattr("carrel.cli.simulation_comparison.run_over_time", no_run)
    before = sorted(lab.iterdir())

    files: dict[str, Any] = {option: Path(name) for option, name in options.items()}

    assert reason in refused(capsys, lambda: simulated(**files))
    assert sorted(lab.iterdir()) == before
    assert (lab / "nodes.yaml").read_text() == NODES


def test_a_run_that_breaks_leaves_the_old_files_and_no_others(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("a bug")

    (lab / "out.csv").write_text("old")
    monkeypatch.setattr("carrel.cli.simulation_comparison.run_over_time", breaks)
    before = sorted(lab.iterdir())

    with pytest.raises(KeyError):
        simulated(csv=Path("out.csv"), svg=Path("out.svg"))

    assert sorted(lab.iterdir()) == before
    assert (lab / "out.csv").read_text() == "old"


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(lab: Path) -> None:
    (lab / "real.csv").write_text("old")
    (lab / "real.csv").chmod(0o640)
    (lab / "link.csv").symlink_to("real.csv")

    simulated(csv=Path("link.csv"), policies="carrel")

    assert (lab / "link.csv").is_symlink()
    assert (lab / "real.csv").stat().st_mode & 0o777 == 0o640
    with (lab / "real.csv").open(encoding="utf-8", newline="") as file:
        assert [row["POLICY"] for row in csv.DictReader(file)] == ["carrel"]


def test_the_table_is_printed_although_a_file_cannot_be_written_any_more(
    lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (lab / "out").mkdir()

    def folder_goes(*given: Any) -> Any:
        (lab / "out").rmdir()
        return run_over_time(*given)

    monkeypatch.setattr("carrel.cli.simulation_comparison.run_over_time", folder_goes)

    with pytest.raises(typer.Exit) as ended:
        simulated(csv=Path("out/x.csv"), policies="carrel")

    said = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert [row["POLICY"] for row in table(said.out)] == ["carrel"]
    assert "Not all results are written" in said.err
