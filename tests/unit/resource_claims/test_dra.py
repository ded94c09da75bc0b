"""What a ResourceClaim asks for, and what it got."""

from typing import Any

import msgspec
import pytest

from carrel.ids import GpuUuid
from carrel.ledger.gpus import MiB
from carrel.ledger.requests import WHOLE, Memory, Request, Topology, TopologyMode
from carrel.parsing import Malformed
from carrel.resource_claims import dra
from carrel.resource_claims.dra import DevicePlace, allocated, is_gpu_class, mebibytes, request_of_claim, uuids_in
from carrel.resource_claims.objects import DeviceClass, ResourceClaim, ResourceClaimSpec, ResourceSlice
from tests.kit.gpus import N1

HERE = DevicePlace("gpu.carrel.dev", "n1", "gpu-0")
ALONE = Topology(TopologyMode.IGNORE)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        pytest.param("8138Mi", 8138, id="mebibytes"),
        pytest.param("2Gi", 2048, id="gibibytes"),
        pytest.param("2000M", 1908, id="megabytes are rounded up"),
        pytest.param("1500k", 2, id="kilobytes are rounded up"),
        pytest.param("1", 1, id="one byte is one MiB"),
        pytest.param("0", 1, id="nothing is one MiB"),
        pytest.param("1e9", 954, id="an exponent"),
        pytest.param("1073741824", 1024, id="bytes"),
        pytest.param("500m", 1, id="half a byte"),
    ],
)
def test_memory_is_read_in_any_unit_and_rounded_up(text: str, mib: int) -> None:
    assert mebibytes(text, "ResourceClaim lab/x", "memory") == mib


def test_what_is_no_quantity_is_named() -> None:
    with pytest.raises(Malformed, match="ResourceClaim lab/x: memory"):
        mebibytes("8 GB", "ResourceClaim lab/x", "memory")


def gpu(count: int = 1, memory: str = "", **more: Any) -> dict[str, Any]:
    capacity = {"capacity": {"requests": {"memory": memory}}} if memory else {}
    return {"deviceClassName": "gpu.carrel.dev", "count": count, **capacity, **more}


def asked(*requests: dict[str, Any], constraints: Any = ()) -> Request | None:
    spec = {"devices": {"requests": [{"name": f"r{n}", **each} for n, each in enumerate(requests)]}}
    spec["devices"]["constraints"] = list(constraints)
    found = msgspec.convert(spec, ResourceClaimSpec)
    return request_of_claim(found, "ResourceClaim lab/x", lambda name: name == "gpu.carrel.dev")


@pytest.mark.parametrize(
    ("requests", "wanted"),
    [
        pytest.param([{"exactly": gpu()}], Request(1, WHOLE, topology=ALONE), id="no memory is the whole GPU"),
        pytest.param([{"exactly": gpu(memory="2Gi")}], Request(1, Memory(MiB(2048)), topology=ALONE), id="memory"),
        pytest.param([{"exactly": gpu(2)}], Request(2, WHOLE, topology=ALONE), id="two GPUs"),
        pytest.param(
            [{"exactly": gpu(memory="1Gi")}, {"exactly": gpu(memory="2Gi")}],
            Request(2, Memory(MiB(2048)), topology=ALONE),
            id="of requests that differ the largest",
        ),
        pytest.param(
            [{"exactly": gpu(memory="1Gi")}, {"exactly": gpu()}],
            Request(2, WHOLE, topology=ALONE),
            id="the whole GPU is more than any memory",
        ),
        pytest.param(
            [{"firstAvailable": [{"name": "nic", "deviceClassName": "nic"}, {"name": "small", **gpu(memory="1Mi")}]}],
            Request(1, Memory(MiB(1)), topology=ALONE),
            id="the first alternative with a GPU",
        ),
        pytest.param([{"exactly": {"deviceClassName": "nic", "count": 1}}], None, id="another class"),
        pytest.param([{"exactly": gpu(adminAccess=True)}], None, id="admin access takes nothing"),
        pytest.param(
            [{"exactly": gpu(0, allocationMode="All")}], Request(1, WHOLE, topology=ALONE), id="all that match: some"
        ),
        pytest.param([{}], None, id="a request of a kind that is not known yet"),
    ],
)
def test_what_a_claim_asks_for(requests: Any, wanted: Request | None) -> None:
    found = asked(*requests)
    assert found == wanted
    assert (found and found.amount) == (wanted and wanted.amount)


def test_gpus_of_one_island() -> None:
    found = asked({"exactly": gpu(2)}, constraints=[{"matchAttribute": "gpu.carrel.dev/island"}])
    assert found == Request(2, WHOLE, topology=Topology(TopologyMode.REQUIRED))


@pytest.mark.parametrize(
    ("name", "expression", "is_gpu"),
    [
        pytest.param("gpu.carrel.dev", None, True, id="ours, before it is read"),
        pytest.param("gpu.nvidia.com", None, True, id="NVIDIA's, before it is read"),
        pytest.param("nic", None, False, id="an unknown one"),
        pytest.param("large", "device.driver == 'gpu.carrel.dev' && true", True, id="a class that selects our driver"),
        pytest.param("large", 'device.driver == "gpu.carrel.dev"', True, id="with other quotes"),
        pytest.param("gpu.nvidia.com", "device.driver == 'nic.example'", False, id="a class of another driver"),
    ],
)
def test_which_classes_are_gpus(name: str, expression: str | None, is_gpu: bool) -> None:
    selectors = [{"cel": {"expression": expression}}]
    found = msgspec.convert({"spec": {"selectors": selectors}}, DeviceClass) if expression else None
    assert is_gpu_class(name, found, ["gpu.carrel.dev"]) is is_gpu


def claim(*results: dict[str, Any]) -> ResourceClaim:
    metadata = {"name": "x", "namespace": "lab", "uid": "u"}
    spec = {
        "devices": {"requests": [{"name": "gpu", "exactly": gpu()}, {"name": "look", "exactly": gpu(adminAccess=True)}]}
    }
    status = {"allocation": {"devices": {"results": list(results)}}} if results else {}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, ResourceClaim)


def result(memory: str = "", device: str = "gpu-0", **more: Any) -> dict[str, Any]:
    consumed = {"consumedCapacity": {"memory": memory}} if memory else {}
    return {"request": "gpu", "driver": "gpu.carrel.dev", "pool": "n1", "device": device, **consumed, **more}


@pytest.mark.parametrize(
    ("results", "taken"),
    [
        pytest.param([], {}, id="not allocated"),
        pytest.param([result("8138Mi", shareID="a")], {HERE: 8138}, id="a part"),
        pytest.param([result()], {HERE: None}, id="nothing is said: the whole GPU"),
        pytest.param([result("1Gi"), result("2Gi")], {HERE: 3072}, id="two requests on one GPU are added up"),
        pytest.param([result("1Gi"), result()], {HERE: None}, id="a part and the whole of it"),
        pytest.param(
            [result("1Gi"), result("2Gi", "gpu-1")],
            {HERE: 1024, DevicePlace("gpu.carrel.dev", "n1", "gpu-1"): 2048},
            id="two GPUs",
        ),
        pytest.param([result("1Gi", request="look", adminAccess=True)], {}, id="admin access takes nothing"),
        pytest.param(
            [result("1Gi", adminAccess=True)], {HERE: 1024}, id="admin access that the claim does not ask for"
        ),
        pytest.param([result("1Gi", driver="nic.example")], {}, id="another driver"),
        pytest.param(
            [{**result(), "consumedCapacity": {"gpu.carrel.dev/memory": "1Gi"}}], {HERE: 1024}, id="with the domain"
        ),
    ],
)
def test_what_a_claim_got(results: Any, taken: dict[DevicePlace, int | None]) -> None:
    assert allocated(claim(*results), ["gpu.carrel.dev"]) == taken


def test_a_slice_says_which_gpu_a_device_is() -> None:
    devices = [
        {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-a"}, "index": {"int": 0}}},
        {"name": "gpu-1", "attributes": {"gpu.carrel.dev/uuid": {"string": "GPU-b"}}},
        {"name": "gpu-2", "attributes": {"ready": {"bool": True}, "uuid": {"int": 3}}},
    ]
    spec = {"driver": "gpu.carrel.dev", "pool": {"name": "n1"}, "devices": devices}
    assert uuids_in(msgspec.convert({"spec": spec}, ResourceSlice)) == {
        HERE: "GPU-a",
        DevicePlace("gpu.carrel.dev", "n1", "gpu-1"): "GPU-b",
    }


@pytest.mark.parametrize(
    ("uuid", "name"),
    [
        pytest.param(
            "GPU-5f3a1e0c-0d5e-4a54-8f0b-2f6d3c1b7a90", "gpu-5f3a1e0c-0d5e-4a54-8f0b-2f6d3c1b7a90", id="a real one"
        ),
        pytest.param("GPU-node.lab.example-7", "gpu-node-lab-example-7", id="made up from the name of a node"),
        pytest.param(f"GPU-{'x' * 80}-12", f"{'x' * 60}-12", id="too long for a label of DNS"),
    ],
)
def test_a_device_is_named_by_the_uuid_of_its_gpu(uuid: str, name: str) -> None:
    assert dra.device_name(GpuUuid(uuid)) == name


def test_the_words_of_the_driver() -> None:
    assert (dra.DRIVER, dra.slice_name(N1)) == ("gpu.carrel.dev", "n1-gpu.carrel.dev")
    assert {"gpu.carrel.dev", "gpu.nvidia.com"} == dra.CLASSES
