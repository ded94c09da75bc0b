"""The selectors of ResourceClaims that Carrel understands.

Selectors are written in CEL, which the scheduler evaluates and Carrel does not. Three conditions are understood, alone
or joined by `&&`:

    device.driver == 'gpu.carrel.dev'
    device.attributes['gpu.nvidia.com'].type == 'gpu'        in NVIDIA's own DeviceClass: no MIG slice
    device.attributes['gpu.carrel.dev'].model == 'NVIDIA-A100-SXM4-80GB'

Of other drivers than those whose devices are counted, none is. A claim that says more, or has a `config` for its driver
(its class, too), is served by the scheduler as everywhere. But Carrel cannot say which GPUs would do for it: it
revokes none for it, and does not allocate it by itself.
"""

import re
from collections.abc import Callable, Collection, Iterable

from carrel.resource_claims.dra import ALL_DEVICES, DRIVER, ISLAND, MODEL, UUID, gpus_wanted, qualified
from carrel.resource_claims.objects import (
    DeviceAlternative,
    DeviceClass,
    DeviceConstraint,
    DeviceSelector,
    ResourceClaimSpec,
)

_QUOTED = r"""(?:'([^'"]+)'|"([^'"]+)")"""
_OF_DRIVER = re.compile(rf"device\.driver\s*==\s*{_QUOTED}")
_OF_ATTRIBUTE = re.compile(rf"device\.attributes\[{_QUOTED}\]\.({MODEL}|type)\s*==\s*{_QUOTED}")


def models_named(selectors: Iterable[DeviceSelector], drivers: Collection[str]) -> set[str] | None:
    """The models that the selectors name; None: they say something that is not understood, or ask for devices of other
    drivers than these."""
    models: set[str] = set()
    for part in (part.strip() for each in selectors for part in each.cel.expression.split("&&")):
        if found := _OF_DRIVER.fullmatch(part):
            if (found[1] or found[2]) not in drivers:
                return None
            continue
        of_attribute = _OF_ATTRIBUTE.fullmatch(part)
        if of_attribute is None:
            return None
        driver, attribute, value = (
            of_attribute[1] or of_attribute[2],
            of_attribute[3],
            of_attribute[4] or of_attribute[5],
        )
        if driver not in drivers:
            return None
        if attribute == MODEL and driver == DRIVER:
            models.add(value)
        elif (attribute, value) != ("type", "gpu"):
            return None
    return models


def model_of(
    spec: ResourceClaimSpec,
    is_gpu: Callable[[str], bool],
    class_named: Callable[[str], DeviceClass | None],
    drivers: Collection[str],
) -> str | None:
    """The one model of the GPUs that a claim asks for; empty: any. None: the claim asks for something that Carrel does
    not understand. `drivers`: whose devices are counted."""
    devices = spec.devices
    wanted = [each for request in devices.requests for each in gpus_wanted(request, is_gpu)]
    if (
        devices.config
        or len(wanted) != len(devices.requests)
        or not all(_is_met(each, spec) for each in devices.constraints)
    ):
        return None
    by_request = [_models_of(each, class_named, drivers) for each in wanted]
    models = {"".join(each) if each is not None and len(each) <= 1 else None for each in by_request}
    return models.pop() if len(models) == 1 else None


def _is_met(constraint: DeviceConstraint, spec: ResourceClaimSpec) -> bool:
    """Whether the GPUs that Carrel chooses are as the constraint says. They are different ones anyhow. The island is
    that of all GPUs of a claim; a single GPU may have none, and then Kubernetes does not give it."""
    if constraint.match_attribute != qualified(ISLAND):
        return constraint.distinct_attribute == qualified(UUID)
    requests = spec.devices.requests
    applies_to_all = not constraint.requests or {each.name for each in requests}.issubset(constraint.requests)
    exact = [each.exactly for each in requests]
    return applies_to_all and (len(requests) > 1 or any(each is not None and each.count > 1 for each in exact))


def _models_of(
    wanted: DeviceAlternative, class_named: Callable[[str], DeviceClass | None], drivers: Collection[str]
) -> set[str] | None:
    found = class_named(wanted.device_class_name)
    if found is None or found.spec.config or wanted.allocation_mode == ALL_DEVICES:
        return None
    return models_named([*found.spec.selectors, *wanted.selectors], drivers)
