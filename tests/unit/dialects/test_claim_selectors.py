"""Which claims Carrel understands well enough to choose GPUs for them."""

import msgspec
import pytest

from carrel.dialects.claim_selectors import model_of
from carrel.kubernetes.objects.resource_claims import DeviceClass, ResourceClaimSpec

OURS, A100 = "device.driver == 'gpu.carrel.dev'", "device.attributes['gpu.carrel.dev'].model == 'A100'"
NVIDIAS = """device.driver == "gpu.nvidia.com" && device.attributes['gpu.nvidia.com'].type == "gpu" """


def understood(
    *expressions: str, of_class: str = OURS, constraints: tuple[dict[str, str], ...] = (), **exactly: object
) -> str | None:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpus", "selectors": selectors, **exactly}}
    body = {"devices": {"requests": [request], "constraints": list(constraints)}}
    found = {"metadata": {"name": "gpus"}, "spec": {"selectors": [{"cel": {"expression": of_class}}]}}
    return model_of(
        msgspec.convert(body, ResourceClaimSpec), lambda name: True, lambda name: msgspec.convert(found, DeviceClass)
    )


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


@pytest.mark.parametrize(
    ("constraint", "is_understood"),
    [
        ({"matchAttribute": "gpu.carrel.dev/island"}, True),
        ({"distinctAttribute": "gpu.carrel.dev/uuid"}, True),
        ({"matchAttribute": "resource.kubernetes.io/pcieRoot"}, False),
    ],
)
def test_constraints_other_than_islands_and_different_gpus_are_left_to_the_scheduler(
    constraint: dict[str, str], is_understood: bool
) -> None:
    assert (understood(constraints=(constraint,)) is not None) is is_understood


def test_all_gpus_that_match_are_left_to_the_scheduler() -> None:
    assert understood(allocationMode="All") is None
