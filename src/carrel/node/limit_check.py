"""Whether the driver really limits each container that was promised a limit: what it says about its control group.

NVIDIA's container toolkit sets the limit before a container starts. One that is too old, or that was switched off, sets
none and says nothing. Reading a limit needs no privilege. A container whose control group or limit cannot be read is
looked at again in the next round, and nobody is told.
"""

from collections.abc import Iterable, Mapping, Sequence

from carrel.dialects.memory_limits import is_limited, limits_of
from carrel.dialects.visible_devices import read_devices
from carrel.ids import GpuUuid, PodUid
from carrel.kubernetes.cluster import Cluster, Json, NotFound
from carrel.kubernetes.isolation import Isolation, title
from carrel.kubernetes.objects.events import WARNING, Note
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.gpus import Gpu, MiB, memory_text
from carrel.node.comparison import Mismatch
from carrel.node.device_names import uuids_named
from carrel.node.interfaces import ControlGroup, Machine
from carrel.node.pod_cgroups import PodCgroups

NOT_LIMITED = "GPUMemoryNotLimited"
RUNNING = "Running"
HELP = "is NVIDIA's container toolkit on this node 1.20 or newer? See docs/memory-limits.md"


class LimitCheck:
    """For the pods of one node."""

    def __init__(self, cluster: Cluster, cgroups: PodCgroups | None, machine: Machine, isolation: Isolation) -> None:
        """`cgroups`: None if those of the machine cannot be seen."""
        self._cluster = cluster
        self._cgroups = cgroups
        self._machine = machine
        self._isolation = isolation
        self._containers: dict[PodUid, tuple[str, Mapping[str, str]]] = {}  # uid → resourceVersion, name → id

    async def look(self, pods: Iterable[Pod], gpus: Sequence[Gpu]) -> tuple[Mismatch, ...]:
        """Return the containers that may use another amount than they were promised."""
        limited = [pod for pod in pods if pod.status.phase == RUNNING and is_limited(pod)]
        self._containers = {each.metadata.uid: self._containers.get(each.metadata.uid, ("", {})) for each in limited}
        if not limited or self._cgroups is None:
            return ()
        promised: dict[tuple[PodUid, str, GpuUuid], tuple[Pod, ControlGroup, MiB]] = {}

        async def ask(pod: Pod) -> None:
            groups = await self._groups_of(pod, self._cgroups) if self._cgroups is not None else {}
            for name, mib in limits_of(pod).items():
                for uuid in uuids_named(read_devices(pod), gpus) if name in groups else ():
                    promised[pod.metadata.uid, name, uuid] = (pod, ControlGroup(uuid, groups[name]), mib)

        await self._isolation.each("limits", limited, ask, title)
        found = await self._machine.memory_limits([group for _, group, _ in promised.values()])
        return tuple(
            not_limited(pod, name, uuid, mib, found[group])
            for (_, name, uuid), (pod, group, mib) in promised.items()
            if group in found and found[group] != mib
        )

    async def _groups_of(self, pod: Pod, cgroups: PodCgroups) -> dict[str, str]:
        """Its containers → their control groups. Raises `ClusterError`."""
        uid, version = pod.metadata.uid, pod.metadata.resource_version
        if self._containers[uid][0] != version:  # a container that starts anew has another id
            try:
                manifest = await self._cluster.get(PODS, pod.metadata.name, pod.metadata.namespace)
            except NotFound:
                return {}
            self._containers[uid] = (version, _ids_of(manifest))
        groups = cgroups.containers_of(uid)
        return {name: groups[each] for name, each in self._containers[uid][1].items() if each in groups}


def not_limited(pod: Pod, container: str, gpu: GpuUuid, promised: MiB, found: MiB | None) -> Mismatch:
    """`found`: None if nothing limits it."""
    may = "as much as it likes" if found is None else memory_text(found)
    words = f"container {container} of {title(pod)} may use {may} of {gpu}, and was promised {memory_text(promised)}"
    return Mismatch(pod, frozenset(), words, Note(NOT_LIMITED, f"{words}; {HELP}", WARNING))


def _ids_of(manifest: Json) -> dict[str, str]:
    """Running containers → their ids: `containerd://0123…` without what is before it."""
    status = manifest.get("status") or {}
    return {
        each["name"]: each["containerID"].rpartition("/")[2]
        for group in ("containerStatuses", "initContainerStatuses")
        for each in status.get(group) or ()
        if each.get("containerID") and "running" in (each.get("state") or {})
    }
