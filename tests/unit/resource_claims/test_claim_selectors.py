"""Which claims Carrel understands well enough to choose GPUs for them."""

import msgspec
import pytest

from carrel.resource_claims.dra import model_of
from carrel.resource_claims.objects import DeviceClass, ResourceClaimSpec

OURS, A100 = "device.driver == 'gpu.carrel.dev'", "device.attributes['gpu.carrel.dev'].model == 'A100'"
NVIDIAS = """device.driver == "gpu.nvidia.com" && device.attributes['gpu.nvidia.com'].type == "gpu" """


BOTH = ("gpu.carrel.dev", "gpu.nvidia.com")
CONFIG = ({"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}},)


def understood(
    *expressions: str,
    of_class: str = OURS,
    constraints: tuple[dict[str, object], ...] = (),
    drivers: tuple[str, ...] = BOTH,
    config: tuple[object, ...] = (),
    config_of_class: tuple[object, ...] = (),
    **exactly: object,
) -> str | None:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpus", "selectors": selectors, **exactly}}
    body = {"devices": {"requests": [request], "constraints": list(constraints), "config": config}}
    spec = {"selectors": [{"cel": {"expression": of_class}}], "config": config_of_class}
    found = msgspec.convert({"metadata": {"name": "gpus"}, "spec": spec}, DeviceClass)
    return model_of(msgspec.convert(body, ResourceClaimSpec), lambda name: True, lambda name: found, drivers)


@pytest.mark.parametrize(
    ("expressions", "model"),
    [
        pytest.param((), "", id="no selector"),
        pytest.param((A100,), "A100", id="a model"),
        pytest.param((f"{OURS} && {A100}",), "A100", id="driver and model"),
        pytest.param((A100, OURS), "A100", id="in two selectors"),
        pytest.param((A100.replace("'", '"'),), "A100", id="the other quotation marks"),
        pytest.param((f"{A100} || true",), None, id="or"),
        pytest.param((f"!({A100})",), None, id="not"),
        pytest.param(("device.attributes['gpu.carrel.dev'].index == 3",), None, id="another attribute"),
        pytest.param((A100, A100.replace("A100", "T4")), None, id="two models at once"),
        pytest.param(("",), None, id="nothing at all"),
    ],
)
def test_driver_and_model_are_understood_and_nothing_else(expressions: tuple[str, ...], model: str | None) -> None:
    assert understood(*expressions) == model


def test_nvidias_own_class_is_understood() -> None:
    assert understood(of_class=NVIDIAS) == ""


@pytest.mark.parametrize("of_class", [NVIDIAS, "device.attributes['gpu.nvidia.com'].type == 'gpu'"])
def test_devices_of_a_driver_that_is_not_counted_are_left_to_the_scheduler(of_class: str) -> None:
    assert understood(of_class=of_class, drivers=("gpu.carrel.dev",)) is None


@pytest.mark.parametrize("whose", ["config", "config_of_class"])
def test_a_config_for_the_driver_is_left_to_the_scheduler(whose: str) -> None:
    assert understood(**{whose: CONFIG}) is None  # type: ignore[arg-type] # one of these two


ISLAND = {"matchAttribute": "gpu.carrel.dev/island"}


@pytest.mark.parametrize(
    ("constraint", "count", "is_understood"),
    [
        pytest.param(ISLAND, 2, True, id="an island"),
        pytest.param({**ISLAND, "requests": ["gpu"]}, 2, True, id="an island, of all requests by name"),
        pytest.param({**ISLAND, "requests": ["other"]}, 2, False, id="an island of some requests"),
        pytest.param(ISLAND, 1, False, id="the island of a single GPU, which may have none"),
        pytest.param({"distinctAttribute": "gpu.carrel.dev/uuid"}, 1, True, id="different GPUs"),
        pytest.param({"matchAttribute": "resource.kubernetes.io/pcieRoot"}, 2, False, id="another attribute"),
    ],
)
def test_constraints_other_than_islands_and_different_gpus_are_left_to_the_scheduler(
    constraint: dict[str, object], count: int, is_understood: bool
) -> None:
    assert (understood(constraints=(constraint,), count=count) is not None) is is_understood


def test_all_gpus_that_match_are_left_to_the_scheduler() -> None:
    assert understood(allocationMode="All") is None
