"""What a node advertises to ResourceClaims."""

from typing import Any

import pytest

from carrel.dialects.cdi import why_no_cdi
from carrel.ids import GpuUuid
from carrel.ledger.gpus import Gpu, MiB
from carrel.node.interfaces import GpuDetails
from carrel.resource_claims.node.device_slice import ServerAbility, ability_of, devices_of, same_devices, written
from tests.kit.gpus import N1, a_gpu

ALL, WHOLE_ONLY, NO_TAINTS = ServerAbility(), ServerAbility(divides_memory=False), ServerAbility(keeps_taints=False)


@pytest.mark.parametrize(
    ("version", "why"),
    [
        pytest.param("containerd://2.2.1", "", id="containerd 2"),
        pytest.param("containerd://1.7.27", "", id="containerd 1.7"),
        pytest.param("containerd://1.6.20", "ignores the devices of claims", id="Debian 12's containerd"),
        pytest.param("containerd://v1.5.0-rc.1", "ignores the devices of claims", id="a candidate"),
        pytest.param("cri-o://1.33.0", "", id="CRI-O"),
        pytest.param("", "not known", id="nothing"),
        pytest.param("docker", "not known", id="no number"),
    ],
)
def test_which_runtimes_hand_over_what_a_claim_got(version: str, why: str) -> None:
    found = why_no_cdi(version)
    assert why in found
    assert bool(found) is bool(why)


@pytest.mark.parametrize(
    ("mib", "text"), [(16276, "16276Mi"), (16384, "16Gi"), (81920, "80Gi"), (1, "1Mi"), (2**20, "1Ti")]
)
def test_memory_is_written_as_the_api_server_writes_it(mib: int, text: str) -> None:
    assert written(MiB(mib)) == text


def names(gpus: list[Gpu], ability: ServerAbility) -> list[str]:
    return [each["name"] for each in devices_of(gpus, ability, {})]


def test_a_gpu_that_nobody_may_have_is_tainted_or_left_out() -> None:
    gpus = [a_gpu("n1", 1), a_gpu("n1", 0, unusable="XID 79")]
    assert names(gpus, ALL) == ["gpu-n1-0", "gpu-n1-1"]
    assert [each.get("taints") for each in devices_of(gpus, ALL, {})] == [
        [{"key": "carrel.dev/unusable", "effect": "NoSchedule"}],
        None,
    ]
    assert names(gpus, NO_TAINTS) == ["gpu-n1-1"]


def test_a_gpu_without_a_uuid_is_left_out() -> None:
    gpu = Gpu(uuid=GpuUuid("n1/0"), node=N1, index=0, model="T4", memory=MiB(16276))
    assert names([gpu], ALL) == []


def test_where_memory_cannot_be_divided_gpus_are_had_whole() -> None:
    (device,) = devices_of([a_gpu("n1", 0, island="a")], WHOLE_ONLY, {})
    assert device["capacity"] == {
        "memory": {"value": "16276Mi"},
        "gpu.nvidia.com/memory": {"value": "16276Mi"},
    }
    assert "allowMultipleAllocations" not in device
    assert device["attributes"]["island"] == {"string": "a"}


def test_claims_that_were_written_for_nvidias_driver_find_what_they_choose_by() -> None:
    gpu = a_gpu("n1", 0)
    details = GpuDetails("Tesla V100-SXM2-16GB", (7, 0), "0000:3b:00.0", "470.57.02", "12.4")
    (device,) = devices_of([gpu], ALL, {gpu.uuid: details})
    said = {name.partition("/")[2]: value for name, value in device["attributes"].items() if "/" in name}
    assert all(name.startswith("gpu.nvidia.com/") for name in device["attributes"] if "/" in name)
    assert said == {
        "type": {"string": "gpu"},
        "uuid": {"string": gpu.uuid},
        "productName": {"string": "Tesla V100-SXM2-16GB"},
        "architecture": {"string": "Volta"},
        "pcieBusID": {"string": "0000:3b:00.0"},
        "cudaComputeCapability": {"version": "7.0.0"},
        "driverVersion": {"version": "470.57.2"},
        "cudaDriverVersion": {"version": "12.4.0"},
    }
    policy = {"default": "0", "validValues": ["0"]}
    assert device["capacity"]["gpu.nvidia.com/memory"] == {"value": "16276Mi", "requestPolicy": policy}


def test_what_is_not_known_is_not_said() -> None:
    (device,) = devices_of([a_gpu("n1", 0)], ALL, {})
    said = {name.partition("/")[2]: value["string"] for name, value in device["attributes"].items() if "/" in name}
    assert said == {"type": "gpu", "uuid": a_gpu("n1", 0).uuid, "productName": a_gpu("n1", 0).model}


def without(device: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in device.items() if key not in keys}


def test_what_the_api_server_dropped_is_not_sent_again() -> None:
    sent = devices_of([a_gpu("n1", 0, unusable="XID 79")], ALL, {})
    assert ability_of(sent, sent, ALL) == ALL
    assert ability_of(sent, [without(sent[0], "allowMultipleAllocations")], ALL) == WHOLE_ONLY
    assert ability_of(sent, [without(sent[0], "taints")], ALL) == NO_TAINTS
    assert ability_of([], [], WHOLE_ONLY) == WHOLE_ONLY, "what was learned stays"


def test_the_time_that_the_api_server_adds_to_a_taint_is_no_difference() -> None:
    sent = devices_of([a_gpu("n1", 0, unusable="XID 79")], ALL, {})
    stored = [{**sent[0], "taints": [{**sent[0]["taints"][0], "timeAdded": "2026-11-16T12:00:00Z"}]}]
    assert same_devices(sent, stored)
    assert not same_devices(sent, [without(sent[0], "taints")])
