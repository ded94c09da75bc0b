"""The words of NVIDIA's device plugin, feature discovery and container runtime: whole GPUs, asked for plainly.

spec.containers[].resources.limits     nvidia.com/gpu: 2           how many whole GPUs
spec.nodeSelector, Node labels         nvidia.com/gpu.product      the model, as people know it
Node labels                            nvidia.com/gpu.memory       MiB; one value for all GPUs of the node
env of a container                     NVIDIA_VISIBLE_DEVICES      what the runtime lets in: UUIDs, `none`, `void`
env of a container                     CUDA_VISIBLE_DEVICES        what CUDA numbers from 0, among those
env of a container                     NVIDIA_GPU_MEMORY_LIMIT     MiB of each of its GPUs that the driver lets it have
env of a container                     NVIDIA_GPU_MEMORY_REQUEST   MiB that the driver keeps for it; Carrel writes 0
mounts of a container                  /var/run/nvidia-container-devices/GPU-…   as the first variable, by a mount
/proc/driver/nvidia/gpus/*/information GPU UUID: GPU-…             the driver's own word about a GPU
"""

from collections.abc import Sequence

from carrel.dialects.interface import Dialect, Reading
from carrel.ids import GpuUuid
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import resource_asked
from carrel.ledger.requests import WHOLE, ContainerNeed, Request
from carrel.parsing.malformed import Malformed

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
MEMORY_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
MEMORY_REQUEST = "NVIDIA_GPU_MEMORY_REQUEST"
RUNTIME_CLASS = "nvidia"
"""What the GPU operator calls the RuntimeClass of its container runtime."""
TOOL_NAMESPACES = ("gpu-operator", "nvidia-gpu-operator", "nvidia-device-plugin", "nvidia-dra-driver-gpu")
"""Where NVIDIA's own DaemonSets run by default: they ask for no GPU, and must see all of their node."""
MOUNTED_DEVICES = "/var/run/nvidia-container-devices"
"""A mount below it names a GPU to a runtime that accepts volume mounts; what is mounted does not matter."""
NO_DEVICE = "none"
"""No GPU, but the driver's libraries and tools."""
NO_RUNTIME = "void"
"""No GPU, and nothing of the driver: as if the container had no GPU image."""


def is_runtime(name: str) -> bool:
    """Whether NVIDIA's container runtime is called so, as a RuntimeClass or as its handler: `nvidia-cdi` is too."""
    return name.startswith(RUNTIME_CLASS)


def is_uuid(text: str) -> bool:
    """Whether it names a physical GPU, and no MIG slice. A driver that is not awake yet writes question marks."""
    return text.startswith("GPU-") and "?" not in text and len(text) > len("GPU-")


def mounts_for(uuids: Sequence[GpuUuid]) -> dict[str, str]:
    """Path in the container → path on the host, of the mounts that name these GPUs."""
    return {f"{MOUNTED_DEVICES}/{uuid}": "/dev/null" for uuid in uuids}


def cdi_names(uuids: Sequence[GpuUuid]) -> tuple[str, ...]:
    """The names of these GPUs in the Container Device Interface; `nvidia-ctk cdi generate` writes what they are."""
    return tuple(f"{GPU}={uuid}" for uuid in uuids)


def uuid_in(information: str, where: str) -> GpuUuid:
    """The GPU that a file of the driver, `/proc/driver/nvidia/gpus/<address>/information`, is about."""
    for line in information.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "GPU UUID" and is_uuid(value.strip()):
            return GpuUuid(value.strip())
    raise Malformed(where, "GPU UUID", information[:200], "GPU-…")


def request_of(pod: Pod, reading: Reading) -> Request | None:
    asked = resource_asked(pod, GPU)
    if not asked.total:
        return None
    needs = tuple(ContainerNeed(ask.container, ask.amount, WHOLE, ask.init) for ask in asked.containers)
    return Request(asked.total, WHOLE, containers=needs, by_kubelet=True)


DIALECT = Dialect(
    name="nvidia",
    words=GPU,
    example="nvidia-model.yaml",
    request_of=request_of,
    resources=(GPU,),
    variable_names=(MEMORY_LIMIT, MEMORY_REQUEST),
    advertises=(GPU,),
    node_labels=(PRODUCT, MEMORY),
)
