"""Where the kubelet hands GPUs over, a plugin advertises memory; and what a container sees is said in one line."""

import json
from pathlib import Path

import pytest

from carrel.configuration.contradictions import contradictions
from carrel.configuration.gpu_memory import GpuMemory, MemoryResource
from carrel.configuration.schema import Configuration, Nodes
from carrel.dialects.options import DeviceList
from carrel.node.entry_point import visible_gpus
from carrel.node.memory_mode_decision import MemoryMode
from carrel.node.nvidia.visible_gpu import GpuSources, device_files, shown_by_driver
from carrel.node.settings import AgentOptions, VisibleGpusSettings
from tests.kit.gpus import N1


@pytest.mark.parametrize(
    ("device_list", "asked", "mode", "wrong"),
    [
        pytest.param(DeviceList.VARIABLE, MemoryResource.AUTO, None, False, id="whatever is safe"),
        pytest.param(DeviceList.VARIABLE, MemoryResource.NODE, MemoryMode.NODE, False, id="as the admin says"),
        pytest.param(DeviceList.MOUNTS, MemoryResource.AUTO, MemoryMode.PLUGIN, False, id="only a plugin hands over"),
        pytest.param(DeviceList.CDI, MemoryResource.PLUGIN, MemoryMode.PLUGIN, False, id="a plugin, by name"),
        pytest.param(DeviceList.CDI, MemoryResource.NODE, MemoryMode.NODE, True, id="a number hands nothing over"),
    ],
)
def test_memory_is_advertised_so_that_it_can_be_handed_over(
    device_list: DeviceList, asked: MemoryResource, mode: MemoryMode | None, wrong: bool
) -> None:
    options = AgentOptions(N1, device_list=device_list, memory_resource=asked)
    assert options.memory_mode() is mode
    given = Configuration(memory=GpuMemory(resource=asked), nodes=Nodes(device_list=device_list))
    assert bool(list(contradictions(given))) is wrong


def test_the_driver_counts_and_not_the_environment(tmp_path: Path) -> None:
    environment = {"NVIDIA_VISIBLE_DEVICES": "GPU-of-the-environment"}
    assert shown_by_driver(GpuSources(environment, tmp_path)) == []
    for address, uuid in (("0000:01:00.0", "GPU-1"), ("0000:02:00.0", "GPU-2")):
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(f"Model: \t A100\nGPU UUID: \t {uuid}\n")
    assert shown_by_driver(GpuSources(environment, tmp_path)) == ["GPU-1", "GPU-2"]


def test_only_files_of_single_gpus_count(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert device_files(tmp_path) == [f"{tmp_path}/nvidia0", f"{tmp_path}/nvidia11"]


def test_the_command_prints_one_line_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-1")
    visible_gpus(VisibleGpusSettings(tmp_path / "message"))
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["variable"] == "GPU-1"
    assert json.loads((tmp_path / "message").read_text()) == json.loads(line)
