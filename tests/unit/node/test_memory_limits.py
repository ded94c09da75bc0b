"""Whether the agent says that its driver can limit the memory of containers."""

from pathlib import Path

import pytest

from carrel.ids import GpuUuid
from carrel.node.interfaces import GpuDetails
from carrel.node.memory_limits import why_no_limits
from carrel.node.pod_cgroups import PodCgroups


@pytest.mark.parametrize(
    ("drivers", "cgroups_v2", "said"),
    [
        pytest.param(["615.20"], True, "", id="the first driver that can"),
        pytest.param(["620.1.02"], True, "", id="a later one"),
        pytest.param(["570.86.15"], True, "its driver 570.86.15 is older than 615", id="an older one"),
        pytest.param(["615.20", "614.9"], True, "its driver 614.9 is older than 615", id="one of two is old"),
        pytest.param([""], True, "its driver does not say which release it is", id="it says nothing"),
        pytest.param(
            ["r615"], True, "its driver is of release 'r615', which Carrel does not understand", id="another word"
        ),
        pytest.param(
            ["615.20"], False, "its control groups are of version 1, and the driver needs version 2", id="version 1"
        ),
        pytest.param(["615.20"], None, "its agent cannot see control groups (--cgroups)", id="they are not mounted"),
    ],
)
def test_what_is_said(drivers: list[str], cgroups_v2: bool | None, said: str) -> None:
    gpus = {GpuUuid(f"GPU-{number}"): GpuDetails(driver_version=each) for number, each in enumerate(drivers)}
    assert why_no_limits(gpus, cgroups_v2=cgroups_v2) == said


def test_slices_take_no_limits_from_the_other_gpus_of_their_node() -> None:
    gpus = {GpuUuid(name): GpuDetails(driver_version="615.20") for name in ("GPU-a", "MIG-b")}
    assert why_no_limits(gpus, cgroups_v2=True) == ""


@pytest.mark.parametrize(
    ("files", "are"),
    [
        pytest.param(["cgroup.controllers", "kubepods.slice/cgroup.procs"], True, id="one tree"),
        pytest.param(["memory/cgroup.procs", "unified/cgroup.controllers"], False, id="a tree for each resource"),
        pytest.param([], None, id="not mounted"),
    ],
)
def test_the_version_of_control_groups_is_seen(tmp_path: Path, files: list[str], are: bool | None) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()

    assert PodCgroups(tmp_path).are_version_2() is are
