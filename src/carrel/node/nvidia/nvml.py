"""What all that asks NVIDIA's library needs."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")

MIB = 1024 * 1024

NOT_SUPPORTED = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE,  # the list grew while it was read
)


def if_supported(ask: Callable[..., T], *arguments: Any) -> T | None:
    """None if this driver or this GPU does not support the call."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError as error:
        if error.value in NOT_SUPPORTED:
            return None
        raise


def product(name: str) -> str:
    """A model as the node label `gpu.product` of NVIDIA's feature discovery spells it."""
    return re.sub(r"[^A-Za-z0-9._-]", "", name.replace(" ", "-"))
