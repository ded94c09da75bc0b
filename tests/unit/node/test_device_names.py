"""The names of devices, and when all of them fit into one message to the kubelet."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.dialects.options import Unit
from carrel.ledger.gpus import Gpu
from carrel.node.device_names import LONGEST_MESSAGE, DeviceInventory, minor_of, remembered_resources
from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2 as wire
from carrel.parsing.malformed import Malformed
from tests.kit.gpus import a_gpu

MEM, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu"


def gpus(*memories: int) -> tuple[Gpu, ...]:
    return tuple(a_gpu("n1", index, memory) for index, memory in enumerate(memories))


def test_two_gpus_of_16276_mib_are_32552_devices_and_each_belongs_to_its_gpu() -> None:
    inventory = DeviceInventory(gpus(16276, 16276))
    devices = inventory.memory_devices()

    assert len({device.id for device in devices}) == 32552
    assert max(len(device.id) for device in devices) == 7
    for position, device in enumerate(devices):
        gpu = inventory.gpu_of(MEM, device.id)
        assert gpu is not None and gpu.index == position // 16276


def test_a_device_keeps_its_name_when_its_gpu_gets_another_index() -> None:
    before = DeviceInventory(gpus(100, 200))
    after = DeviceInventory(tuple(replace(gpu, index=1 - gpu.index) for gpu in before.gpus))
    assert {device.id for device in before.memory_devices()} == {device.id for device in after.memory_devices()}
    assert after.gpu_of(MEM, before.memory_devices()[0].id) == replace(before.gpus[0], index=1)


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("", id="empty"),
        pytest.param("GPU-n1-0-_-0", id="as gpushare names them"),
        pytest.param("zzzz0", id="of no GPU"),
        pytest.param("{gpu}", id="no number"),
        pytest.param("{gpu}-1", id="a negative number"),
        pytest.param("{gpu}01", id="a leading zero"),
        pytest.param("{gpu}2s", id="one more than the GPU has"),
        pytest.param("{gpu}" + "9" * 10_000, id="an endless number"),
        pytest.param("{gpu}٣", id="a digit of another script"),
    ],
)
def test_unknown_device_names_belong_to_no_gpu(device: str) -> None:
    inventory = DeviceInventory(gpus(100))
    assert inventory.gpu_of(MEM, device.format(gpu=inventory.memory_devices()[0].id[:4])) is None


@pytest.mark.parametrize(
    ("device", "index"),
    [
        pytest.param("GPU-n1-1", 1, id="by its UUID"),
        pytest.param("1", 1, id="by its index"),
        pytest.param("GPU-n1-1::3", 1, id="a replica of a GPU that is shared by time"),
        pytest.param("GPU-n1-7", None, id="of another node"),
        pytest.param("", None, id="empty"),
    ],
)
def test_whole_gpus_are_named_as_nvidias_plugin_does(device: str, index: int | None) -> None:
    gpu = DeviceInventory(gpus(100, 100)).gpu_of(WHOLE, device)
    assert (gpu.index if gpu else None) == index


@pytest.mark.parametrize(
    ("memories", "unit"),
    [
        pytest.param([16276] * 2, "MiB", id="two GPUs of 16 GiB"),
        pytest.param([81920] * 2, "MiB", id="two GPUs of 80 GiB"),
        pytest.param([40960] * 8, "2MiB", id="eight GPUs of 40 GiB"),
        pytest.param([81920] * 8, "4MiB", id="eight GPUs of 80 GiB"),
        pytest.param([196608] * 16, "32MiB", id="sixteen GPUs of 192 GiB"),
        pytest.param([], "MiB", id="no GPUs"),
    ],
)
def test_the_smallest_unit_that_fits_is_named(memories: list[int], unit: str) -> None:
    inventory = DeviceInventory(gpus(*memories))
    assert inventory.smallest_unit.value == unit
    assert inventory.fits == (unit == "MiB")


def test_what_fits_also_fits_when_every_gpu_is_unhealthy() -> None:
    largest = DeviceInventory(gpus(*[81920] * 2))
    assert largest.fits
    devices = largest.memory_devices()
    longest = max(devices, key=lambda device: len(device.id))
    alone = wire.ListAndWatchResponse(devices=[wire.Device(ID=longest.id, health="Unhealthy")])
    assert len(devices) * alone.ByteSize() <= LONGEST_MESSAGE


@given(st.lists(st.integers(0, 3000), max_size=4), st.sampled_from(Unit))
def test_never_more_is_advertised_than_there_is(memories: list[int], unit: Unit) -> None:
    inventory = DeviceInventory(gpus(*memories), unit)
    assert len(inventory.memory_devices()) * unit.mib <= sum(memories)
    assert len(inventory.memory_devices()) == sum(memory // unit.mib for memory in memories)


def test_units_are_powers_of_two_up_to_a_gib() -> None:
    assert [unit.mib for unit in Unit] == [2**power for power in range(11)]


@pytest.mark.parametrize(
    ("version", "minor"),
    [
        pytest.param("v1.37.1", 37, id="upstream's"),
        pytest.param("v1.36.0+k3s1", 36, id="k3s's"),
        pytest.param("v1.35.4-eks-1a2b3c4", 35, id="a cloud's"),
        pytest.param("v1.36", 36, id="no patch"),
        pytest.param("v0.0.0-master+$Format:%H$", None, id="built without a version"),
        pytest.param("v2.0.0", None, id="another major version"),
        pytest.param("1.37.1", None, id="no v"),
        pytest.param("", None, id="none"),
    ],
)
def test_the_version_of_a_kubelet(version: str, minor: int | None) -> None:
    assert minor_of(version) == minor


CHECKPOINT = """
{"Data": {"PodDeviceEntries": [{"PodUID": "u", "ContainerName": "main", "ResourceName": "nvidia.com/gpu",
                                "DeviceIDs": {"-1": ["GPU-a"]}, "AllocResp": "QgA="}],
          "RegisteredDevices": {"aliyun.com/gpu-mem": []}},
 "Checksum": 1}"""


def test_a_kubelet_remembers_plugins_that_are_registered_and_those_whose_devices_pods_have() -> None:
    assert remembered_resources(CHECKPOINT, "checkpoint") == {"nvidia.com/gpu", "aliyun.com/gpu-mem"}
    nothing = '{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": 2}'
    assert remembered_resources(nothing, "checkpoint") == frozenset()


@pytest.mark.parametrize("text", ["", "[]", '{"Data": 1}', '{"Data": {"PodDeviceEntries": {}}}'])
def test_a_checkpoint_of_another_form_is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="checkpoint"):
        remembered_resources(text, "checkpoint")
