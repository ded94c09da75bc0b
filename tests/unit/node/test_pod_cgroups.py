"""The control groups of a machine tell which pods have processes."""

from pathlib import Path

import pytest

from carrel.node.pod_cgroups import PodCgroups

UID = "0a1b2c3d-1111-2222-3333-444455556666"
OTHER = "ffffffff-1111-2222-3333-444455556666"


def group(folder: Path, processes: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text(processes)


LAYOUTS = {
    "version 2, systemd": (
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
        UID.replace("-", "_"),
    ),
    "version 2, systemd, guaranteed": ("kubepods.slice/kubepods-pod{}.slice", UID.replace("-", "_")),
    "version 2, cgroupfs": ("kubepods/besteffort/pod{}", UID),
    "version 1, cgroupfs": ("memory/kubepods/burstable/pod{}", UID),
    "version 1, systemd only": ("systemd/kubepods/pod{}", UID),
    "below a root of its own": ("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{}.slice", UID),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pod_runs_while_one_of_its_containers_has_a_process(tmp_path: Path, layout: str) -> None:
    path, name = LAYOUTS[layout]
    pod = tmp_path / path.format(name)
    group(pod, "")
    group(pod / "container-1", "")
    group(pod / "container-2", "4711\n")
    cgroups = PodCgroups(tmp_path)
    assert cgroups.running() == frozenset({UID})

    group(pod / "container-2", "")
    assert cgroups.running() == frozenset()


def test_pods_are_told_apart_and_other_groups_are_not_pods(tmp_path: Path) -> None:
    group(tmp_path / "kubepods" / f"pod{UID}", "1\n")
    group(tmp_path / "kubepods" / f"pod{OTHER}", "2\n")
    group(tmp_path / "kubepods" / "pod0123456789abcdef0123456789abcdef", "3\n")  # a static pod
    group(tmp_path / "system.slice" / f"pod{UID}.service", "4\n")

    assert PodCgroups(tmp_path).running() == frozenset({UID, OTHER})


@pytest.mark.parametrize("made", ["", "system.slice", "memory"], ids=["empty", "no kubelet", "an empty hierarchy"])
def test_without_the_kubelets_groups_nothing_is_known(tmp_path: Path, made: str) -> None:
    (tmp_path / made).mkdir(exist_ok=True)

    assert PodCgroups(tmp_path).running() is None
    assert PodCgroups(tmp_path / "no-such-folder").running() is None


def test_a_kubelet_without_pods_is_seen(tmp_path: Path) -> None:
    (tmp_path / "kubepods.slice").mkdir()

    assert PodCgroups(tmp_path).running() == frozenset()
