"""The GPUs of this machine, through NVIDIA's management library.

machine        what the library says about each GPU, how GPUs are linked, and whether they can be used
visible_gpu    the one GPU that a container sees
"""

from carrel.node.nvidia.machine import NvmlMachine

__all__ = ["NvmlMachine"]
