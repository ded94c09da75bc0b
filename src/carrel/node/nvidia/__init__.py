"""The GPUs of this machine, through NVIDIA's management library.

questions      asking a library that may hang
nvml           what all that asks it needs
mig            the MIG slices of a GPU
machine        what the library says about each GPU, how GPUs are linked, whether they can be used, and what they do
limits         what the driver says about limits of memory
visible_gpu    which GPUs a container sees; the program that says it in a pod of `carrel doctor`
"""

from carrel.node.nvidia.machine import NvmlMachine

__all__ = ["NvmlMachine"]
