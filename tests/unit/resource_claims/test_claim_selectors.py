"""Which claims Carrel understands well enough to choose GPUs for them."""

import msgspec
import pytest

from carrel.resource_claims.dra import NamedGpus, gpus_named_by
from carrel.resource_claims.objects import DeviceClass, ResourceClaimSpec

OURS, A100 = "device.driver == 'gpu.carrel.dev'", "device.attributes['gpu.carrel.dev'].model == 'A100'"
NVIDIAS = """device.driver == "gpu.nvidia.com" && device.attributes['gpu.nvidia.com'].type == "gpu" """


BOTH = ("gpu.carrel.dev", "gpu.nvidia.com")
CONFIG = ({"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}},)


def named(
    *expressions: str,
    of_class: str = OURS,
    constraints: tuple[dict[str, object], ...] = (),
    drivers: tuple[str, ...] = BOTH,
    config: tuple[object, ...] = (),
    config_of_class: tuple[object, ...] = (),
    **exactly: object,
) -> NamedGpus | None:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpus", "selectors": selectors, **exactly}}
    body = {"devices": {"requests": [request], "constraints": list(constraints), "config": config}}
    spec = {"selectors": [{"cel": {"expression": of_class}}], "config": config_of_class}
    found = msgspec.convert({"metadata": {"name": "gpus"}, "spec": spec}, DeviceClass)
    return gpus_named_by(msgspec.convert(body, ResourceClaimSpec), lambda name: True, lambda name: found, drivers)


def understood(*expressions: str, **more: object) -> str | None:
    """The model."""
    found = named(*expressions, **more)  # type: ignore[arg-type] # passed through
    return found.model if found is not None else None


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


PROFILE = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"


@pytest.mark.parametrize(
    ("expressions", "slices"),
    [
        pytest.param((), "any", id="of any profile"),
        pytest.param((PROFILE,), "1g.10gb", id="of a profile"),
        pytest.param((PROFILE.replace("10gb", "10gb+me"),), "1g.10gb.me", id="of one with a plus"),
        pytest.param((PROFILE, PROFILE.replace("1g.10gb", "2g.20gb")), None, id="of two profiles at once"),
    ],
)
def test_mig_slices_of_nvidias_driver_are_understood(expressions: tuple[str, ...], slices: str | None) -> None:
    of_class = NVIDIAS.replace('"gpu" ', '"mig" ')
    assert named(*expressions, of_class=of_class) == (NamedGpus(slices=slices) if slices else None)


@pytest.mark.parametrize("whose", ["config", "config_of_class"])
def test_a_config_for_the_driver_is_left_to_the_scheduler(whose: str) -> None:
    assert understood(**{whose: CONFIG}) is None


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
