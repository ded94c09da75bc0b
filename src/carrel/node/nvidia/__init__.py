"""The GPUs of this machine, through NVIDIA's management library.

nvml           what the library says about one GPU, and how GPUs are linked
machine        all GPUs, and whether they can be used
visible_gpu    the one GPU that a container sees
"""

from carrel.node.nvidia.machine import NvmlMachine

__all__ = ["NvmlMachine"]
