"""The last gate: a ResourceClaim gets its GPUs on this node only if their Leases name it.

What the API server says now counts, and no cache: the claim with its allocation, and the Lease of each GPU. Before the
kubelet is answered the agent reports that the claim uses the GPUs, so that they stay taken until they are given back.

A container runtime gives the GPUs of a claim to a container by a file of the Container Device Interface (CDI), one for
each prepared claim. One device of such a file stands for all GPUs of the claim: what a container sees is one variable,
and a second device would overwrite it. The files also are the record of which claims are prepared, so that an agent
which is started again knows it.
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from carrel.dialects import nvidia
from carrel.dialects.carrel import LEASE_GPU
from carrel.dialects.options import CudaDevices
from carrel.ids import GpuUuid, NodeName, ResourceClaimUid
from carrel.kubernetes.cluster import Cluster, NotFound
from carrel.ledger.gpus import Gpu
from carrel.ledger.refusals import Refusal
from carrel.node.lease_check import LeaseCheck
from carrel.resource_claims import dra
from carrel.resource_claims.dra import CDI_FILE, CDI_KIND
from carrel.resource_claims.objects import RESOURCE_CLAIMS, AllocatedDevice, ResourceClaim

CDI_VERSION = "0.6.0"
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}", re.ASCII)


def device_id(uid: ResourceClaimUid) -> str:
    return f"{CDI_KIND}={uid}"


class ClaimFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, uid: ResourceClaimUid, gpus: Sequence[GpuUuid], variables: Mapping[str, str]) -> None:
        """`gpus`: of which the claim is a user; with admin access it is none. Raises `OSError`. The runtime reads files
        at any moment, so a file appears as a whole."""
        device = {
            "name": uid,
            "annotations": {LEASE_GPU: ",".join(gpus)},
            "containerEdits": {"env": [f"{name}={value}" for name, value in variables.items()]},
        }
        content = {"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": [device]}
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f".{CDI_FILE}{uid}.new"
        new.write_text(json.dumps(content))
        new.replace(self._file(uid))

    def remove(self, uid: ResourceClaimUid) -> None:
        """Raises `OSError`."""
        if _UID.fullmatch(uid):
            self._file(uid).unlink(missing_ok=True)

    def prepared(self) -> dict[ResourceClaimUid, tuple[GpuUuid, ...]]:
        """uid of a claim → the UUIDs of its GPUs. A file that cannot be read has none: it is somebody else's."""
        found = {}
        for path in sorted(self._folder.glob(f"{CDI_FILE}*.json")):
            uid = ResourceClaimUid(path.stem.removeprefix(CDI_FILE))
            found[uid] = _gpus_in(path)
        return {uid: gpus for uid, gpus in found.items() if gpus}

    def _file(self, uid: ResourceClaimUid) -> Path:
        if not _UID.fullmatch(uid):
            raise OSError(f"{uid!r} is no uid")  # it becomes a part of a path
        return self._folder / f"{CDI_FILE}{uid}.json"


def _gpus_in(path: Path) -> tuple[GpuUuid, ...]:
    try:
        content: Any = json.loads(path.read_text())
        return tuple(filter(None, content["devices"][0]["annotations"][LEASE_GPU].split(",")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ()


@dataclass(frozen=True, slots=True)
class NamedClaim:
    """A ResourceClaim as the kubelet names it."""

    namespace: str
    name: str
    uid: ResourceClaimUid


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device of a claim, as the kubelet is told of it."""

    requests: tuple[str, ...]
    """The requests of the claim that it is for."""
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    """By which names the container runtime knows what it has to do."""


async def _nothing() -> None:
    return None


@dataclass(slots=True)
class ClaimPreparation:
    """Hands the GPUs of one node over to claims."""

    cluster: Cluster
    node: NodeName
    files: ClaimFiles
    lease_check: LeaseCheck
    cuda_devices: CudaDevices = CudaDevices.UUID
    report: Callable[[], Awaitable[None]] = _nothing
    """Writes who uses the GPUs to the API server."""
    by_cdi: bool = False
    """Each GPU is named to the container runtime too, as NVIDIA's own CDI files call it."""
    gpus: Sequence[Gpu] = field(default=())
    """As the agent last saw them."""

    async def prepare(self, named: NamedClaim) -> Sequence[PreparedDevice] | Refusal:
        """Raises `ClusterError`, `Malformed` and `OSError`."""
        claim = await self._claim(named)
        if isinstance(claim, Refusal):
            return claim
        results = self._results(claim)
        if not results:
            return Refusal(f"the claim has no GPU of {self.node}: it is not allocated, or elsewhere")
        gpus: dict[str, Gpu] = {}
        for result in results:
            gpu = await self._gpu(result, claim)
            if isinstance(gpu, Refusal):
                return gpu
            gpus[result.device] = gpu
        given = tuple(gpus.values())
        used = {gpus[result.device].uuid: None for result in results if not dra.is_for_admin(claim, result)}
        self.files.write(named.uid, list(used), self._variables(given))
        await self.report()
        return [self._prepared(result, gpus[result.device], named.uid) for result in results]

    def _prepared(self, result: AllocatedDevice, gpu: Gpu, uid: ResourceClaimUid) -> PreparedDevice:
        ids = (device_id(uid), *(nvidia.cdi_names([gpu.uuid]) if self.by_cdi else ()))
        return PreparedDevice((result.request.partition("/")[0],), result.pool, result.device, ids)

    async def unprepare(self, uid: ResourceClaimUid) -> None:
        """Raises `OSError`, and `ClusterError` if only the report could not be written."""
        self.files.remove(uid)
        await self.report()

    def users(self) -> Mapping[GpuUuid, list[ResourceClaimUid]]:
        """UUID of a GPU → the uids of the claims that are prepared for it. Admin access only looks on."""
        users: dict[GpuUuid, list[ResourceClaimUid]] = {}
        for uid, gpus in self.files.prepared().items():
            for uuid in gpus:
                users.setdefault(uuid, []).append(uid)
        return users

    async def _claim(self, named: NamedClaim) -> ResourceClaim | Refusal:
        try:
            found = msgspec.convert(await self.cluster.get(RESOURCE_CLAIMS, named.name, named.namespace), ResourceClaim)
        except NotFound:
            return Refusal(f"ResourceClaim {named.namespace}/{named.name} does not exist")
        if found.metadata.uid != named.uid:
            return Refusal(f"ResourceClaim {named.namespace}/{named.name} is another one by now")
        return found

    def _results(self, claim: ResourceClaim) -> list[AllocatedDevice]:
        given = claim.status.allocation.devices.results if claim.status.allocation is not None else ()
        return [each for each in given if each.driver == dra.DRIVER and each.pool == self.node]

    async def _gpu(self, result: AllocatedDevice, claim: ResourceClaim) -> Gpu | Refusal:
        """The GPU that the device is, if the claim may have it."""
        gpu = next((each for each in self.gpus if dra.device_name(each.uuid) == result.device), None)
        if gpu is None:
            return Refusal(f"{self.node} has no device {result.device}")
        if gpu.unusable:
            return Refusal(f"{gpu} is not in use: {gpu.unusable}")
        holder = dra.holder_of_claim(claim)
        if dra.is_for_admin(claim, result) or await self.lease_check.confirms(holder.uid, [gpu.uuid], self.gpus):
            return gpu
        holders = await self.lease_check.holders(gpu.index)
        held = f"; it is held by {', '.join(holders)}" if holders else ""
        return Refusal(f"no Lease gives {gpu} to {holder}{held}")

    def _variables(self, gpus: Sequence[Gpu]) -> dict[str, str]:
        uuids, indices = ",".join(gpu.uuid for gpu in gpus), ",".join(str(gpu.index) for gpu in gpus)
        by_cuda = indices if self.cuda_devices is CudaDevices.INDEX else uuids
        # What CDI has added, the runtime must not add by the variable too.
        return {
            nvidia.VISIBLE_DEVICES: nvidia.NO_RUNTIME if self.by_cdi else uuids,
            nvidia.CUDA_VISIBLE_DEVICES: by_cuda,
        }
