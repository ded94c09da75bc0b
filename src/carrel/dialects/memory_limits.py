"""How much memory of its GPUs the driver lets a container have: the variables, and the annotations that they read.

    env of a container       NVIDIA_GPU_MEMORY_LIMIT      reads the annotation of the container
                             NVIDIA_GPU_MEMORY_REQUEST    0: the ledger promises memory, the driver need not
    pod annotations          limits.carrel.dev/<container>   MiB; on every pod whose containers have the variable

NVIDIA's container toolkit refuses to start a container whose variable is empty or no number, and the driver a limit
that is more than the GPU has. So the annotation is there from admission on, with an amount that suits the smallest GPU;
the Binding replaces it with the part of the pod's own GPUs. A pod with such an annotation *is limited*: it goes only to
nodes that have said that they can limit memory, whatever the configuration has become since.

A container gets what it asks for. Containers that ask for nothing themselves, of a pod that asks as a whole, share its
part: each gets an equal portion of it. An init container, which runs alone, gets all of it.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from carrel.dialects import nvidia
from carrel.dialects.carrel import LIMITS_PREFIX
from carrel.dialects.interface import Json
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import SIDECAR, annotation_field, subject, variable_from
from carrel.ledger.gpus import MiB, total_of
from carrel.ledger.requests import WHOLE, Amount, ContainerNeed, Memory, Portion, Request
from carrel.parsing.fields import whole_number

EVERYTHING = Memory(MiB(2**40))
"""More than any GPU has: a container that may have all of its GPUs."""
VARIABLES = (nvidia.MEMORY_LIMIT, nvidia.MEMORY_REQUEST)


def limit_key(container: str) -> str:
    """A container's name may be as long as the part of a key after the slash, so it stands there alone."""
    return f"{LIMITS_PREFIX}{container}"


def limited(pod: Pod, request: Request) -> Request:
    """Return the request with what each container may have of it."""
    return replace(request, is_limited=True, containers=request.containers or _equal_needs(pod, request))


def is_limited(pod: Pod) -> bool:
    return any(key.startswith(LIMITS_PREFIX) for key in pod.metadata.annotations)


def limits_of(pod: Pod) -> dict[str, MiB]:
    """What each container of a limited pod may have. Raises `Malformed`."""
    where, notes = subject(pod.metadata), pod.metadata.annotations
    return {
        key.removeprefix(LIMITS_PREFIX): MiB(whole_number(notes[key], where, annotation_field(key), at_least=1))
        for key in notes
        if key.startswith(LIMITS_PREFIX)
    }


def variables(container: str) -> list[Json]:
    return [
        variable_from(nvidia.MEMORY_LIMIT, limit_key(container)),
        {"name": nvidia.MEMORY_REQUEST, "value": "0"},
    ]


def variables_beside(pod: Pod, target: str) -> list[Json]:
    """Return the variables of a debug container: those of its target, else of the first container with a limit."""
    keys = sorted(key for key in pod.metadata.annotations if key.startswith(LIMITS_PREFIX))
    found = [limit_key(target)] if limit_key(target) in keys else keys[:1]
    return [each for key in found for each in variables(key.removeprefix(LIMITS_PREFIX))]


def write_limits(request: Request, memory: Sequence[MiB]) -> dict[str, str]:
    """Write what each container may have of GPUs with so much memory. There is one number for all GPUs of a container:
    where they differ in size, that of the smallest."""
    return {
        limit_key(need.container): str(min((_limit(need.amount, each) for each in memory), default=1))
        for need in request.containers
    }


def _limit(amount: Amount, memory: MiB) -> int:
    """Never nothing, with which no program runs, and never more than the GPU has, which the driver refuses."""
    return max(1, min(total_of(memory) if amount == WHOLE else amount.on(memory), total_of(memory)))


def _equal_needs(pod: Pod, request: Request) -> tuple[ContainerNeed, ...]:
    inits = [each.name for each in pod.spec.init_containers if each.restart_policy != SIDECAR]
    names = [each.name for each in (*pod.spec.init_containers, *pod.spec.containers)]
    part = _divided(request.amount, len(names) - len(inits))
    return tuple(
        ContainerNeed(name, request.gpus, _divided(request.amount, 1) if name in inits else part, init=name in inits)
        for name in names
    )


def _divided(amount: Amount, by: int) -> Amount:
    """All of it of a whole GPU: its containers hurt nobody else, and all of them see it."""
    if amount == WHOLE:
        return EVERYTHING
    if by <= 1:
        return amount
    if isinstance(amount, Memory):
        return Memory(MiB(max(1, amount.mib // by)))
    return Portion(amount.part * Fraction(1, by))
