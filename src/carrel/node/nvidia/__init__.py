"""The GPUs of this machine, through NVIDIA's management library."""

from carrel.node.nvidia.machine import NvmlMachine

__all__ = ["NvmlMachine"]
