"""The selectors of ResourceClaims that Carrel understands.

Selectors are written in CEL, which the scheduler evaluates and Carrel does not. Three conditions are understood, alone
or joined by `&&`:

    device.driver == 'gpu.carrel.dev'
    device.attributes['gpu.nvidia.com'].type == 'gpu'        in NVIDIA's own DeviceClass: no MIG slice
    device.attributes['gpu.carrel.dev'].model == 'NVIDIA-A100-SXM4-80GB'

A claim that says more is served by the scheduler as everywhere. But Carrel cannot say which GPUs would do for it: it
revokes none for it, and does not allocate it by itself.
"""

import re
from collections.abc import Callable, Iterable

from carrel.dialects.dra import ALL_DEVICES, DRIVER, ISLAND, MODEL, UUID, gpus_wanted, qualified
from carrel.kubernetes.objects.resource_claims import DeviceAlternative, DeviceClass, DeviceSelector, ResourceClaimSpec

_QUOTED = r"""(?:'([^'"]+)'|"([^'"]+)")"""
_OF_DRIVER = re.compile(rf"device\.driver\s*==\s*{_QUOTED}")
_OF_MODEL = re.compile(rf"device\.attributes\[(?:'{DRIVER}'|\"{DRIVER}\")\]\.{MODEL}\s*==\s*{_QUOTED}")

_OF_WHOLE_GPUS = re.compile(r"""device\.attributes\[(?:'[^'"]+'|"[^'"]+")\]\.type\s*==\s*(?:'gpu'|"gpu")""")


def models_named(selectors: Iterable[DeviceSelector]) -> set[str] | None:
    """The models that the selectors name; None: they say something that is not understood."""
    models: set[str] = set()
    for part in (part.strip() for each in selectors for part in each.cel.expression.split("&&")):
        if found := _OF_MODEL.fullmatch(part):
            models.add(found[1] or found[2])
        elif not (_OF_DRIVER.fullmatch(part) or _OF_WHOLE_GPUS.fullmatch(part)):
            return None
    return models


def model_of(
    spec: ResourceClaimSpec, is_gpu: Callable[[str], bool], class_named: Callable[[str], DeviceClass | None]
) -> str | None:
    """The one model of the GPUs that a claim asks for; empty: any. None: the claim asks for something that Carrel does
    not understand."""
    wanted = [each for request in spec.devices.requests for each in gpus_wanted(request, is_gpu)]
    by_request = [_models_of(each, class_named) for each in wanted]
    others = [
        each
        for each in spec.devices.constraints
        if each.match_attribute != qualified(ISLAND) and each.distinct_attribute != qualified(UUID)
    ]
    if others or len(wanted) != len(spec.devices.requests):
        return None
    models = {"".join(each) if each is not None and len(each) <= 1 else None for each in by_request}
    return models.pop() if len(models) == 1 else None


def _models_of(wanted: DeviceAlternative, class_named: Callable[[str], DeviceClass | None]) -> set[str] | None:
    found = class_named(wanted.device_class_name)
    if found is None or wanted.allocation_mode == ALL_DEVICES:
        return None
    return models_named([*found.spec.selectors, *wanted.selectors])
