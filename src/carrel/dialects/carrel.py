"""Carrel's own words, all under `carrel.dev/`.

    a user asks, on a pod
      carrel.dev/gpu-count: "2"             so many GPUs of one node (1 if not said)
      carrel.dev/gpu-memory-mib: "8138"     on each of them; whole GPUs if not said
      carrel.dev/gpu-model: NVIDIA-A100-SXM4-80GB     for any dialect
      carrel.dev/gang-size: "4"             how many pods the gang has, for dialects that name a gang but not its size
      carrel.dev/booking: next | <id>       it is for a booking that may start later, and waits for it; also the name of
                                            the scheduling gate that holds it until then
      carrel.dev/no-successor: "true"       if it loses its GPU it is not created again; also on a pod that is ending
    a hub in `hubs.accounts` says, on a pod that it creates
      carrel.dev/hub-address: ada@lab.example    under which address its user books
    an admin decides, on a Namespace
      carrel.dev/exempt: "true"             its pods have no tier and never lose their GPUs
      carrel.dev/when-full: cpu | wait      what its pods do when no GPU is free
      carrel.dev/revocation-grace: 5m       how long its pods may stay after they were told that they lose their GPU
      carrel.dev/sees-gpus: "true"          as a label: its pods see GPUs that they do not ask for
    the chart, or an admin, writes, on the ClusterRole `carrel-installation`
      carrel.dev/installed-in: carrel       the namespace of the one Carrel of this cluster
    who changes the configuration writes, on the ConfigMap `carrel-changes`
      carrel.dev/changed-by: eva@lab.example
      carrel.dev/reason: more people        why it was changed
    Carrel writes, on a pod
      carrel.dev/tier: booked | opportunistic
      carrel.dev/user: alice@lab.example    whose pod it is
      carrel.dev/unlisted-spawner: system:serviceaccount:jhub:hub
                                            who created it for a user of a hub, and may not say for whom
      carrel.dev/devices: GPU-…,GPU-…       the GPUs of the pod
      carrel.dev/cgpu-disable: "true"       whether its node keeps the memory of containers apart (gpushare's label)
      carrel.dev/waits-until: 2026-…Z       when the booking starts that it is for; a gate holds it until then
      carrel.dev/woken-at: 2026-…Z          when kube-scheduler was last made to look at it again
      carrel.dev/gpus-lent: {…}             on a booked pod that was not placed: who else may use its GPUs, and until
                                            when, see `lent_gpus`
      carrel.dev/leave-by: 2026-…Z          when it is going to lose its GPU, for a hook that saves its work
      carrel.dev/notice: this pod …         what the person in the pod should know now; its containers may read it in
                                            a file
      carrel.dev/warned: 2026-…Z 15m        of which end, and how long before, it was last warned
      carrel.dev/handed-over: {…}           on the successor of a pod that lost its GPU, see `hand_over_record`
      carrel.dev/runs-without-gpu: …        on a pod that runs without the GPU that it asked for: why, in a sentence
      carrel.dev/asked-for: {"gpus": 1, "model": "NVIDIA-A100"}
                                            and what it asked for, see `without_gpu`
      devices.carrel.dev/<container>: GPU-… the GPUs of one container, where containers differ
      limits.carrel.dev/<container>: "8138" how many MiB of each of its GPUs the driver lets it have: `memory_limits`
      carrel.dev/indices: 0,1               by dialects.cudaDevices: index: the same GPUs by their numbers on the
      indices.carrel.dev/<container>: 0     node, for CUDA_VISIBLE_DEVICES
      carrel.dev/slots: n1/0,n1/1           what its Leases are for, where they do not name a UUID: slots, on a node
                                            where the kubelet chooses the GPUs; GPUs whose UUID nobody reports
    Carrel writes, on the Event `GPUKept` of a booked pod
      carrel.dev/leave-by: 2026-…Z          when the last pod that still uses its GPUs has to end
    Carrel writes, on a reservation pod
      carrel.dev/lease: gpu-n1-0            the slot it is made for
    Carrel writes, on the Lease of a GPU (`gpu-<node>-<index>` in Carrel's own namespace)
      carrel.dev/gpu: GPU-…                 identity: an index may belong to another GPU after a reboot
      carrel.dev/shares: {"<uid>": {"pod": "lab/train", "mib": 8138, "state": "assigned", "tries": […],
                                    "booking": "<id>", "covered": "2026-…Z"}}
                                            no mib: the whole GPU; tries: the binds that rely on it; booking and
                                            covered: which booking covers it, and since when; "claim" instead of
                                            "pod": a ResourceClaim holds it
      carrel.dev/kept-for: {"uid": "…", "pod": "lab/urgent", "from": {"<uid>": "lab/train"}, "booking": "<id>"}
                                            the booked pod that gets the GPU, and who has to give it back for it; when
                                            that pod is gone, uid is the booking's id, and until says for how long
      carrel.dev/reservation: {"state": "held", "gpu": "GPU-…", "pod": "…"}
                                            of a slot (carrel.dev/gpu is `<node>/<index>` there): which GPU it is;
                                            refused and until: why the kubelet gave none, and when the next try is
      holderIdentity                        uid of the pod that has the whole GPU, as the peers write it
    Carrel writes, on the Lease `carrel-extender` there
      carrel.dev/rules: {"memoryUnit": "GiB", …}    by which settings the extender places pods; see
                                            `cluster.placement_rules`
    Carrel writes, on devices and ResourceClaims (`resource_claims.shadows`)
      carrel.dev/unusable, carrel.dev/shadow, carrel.dev/holder    what no pod may have; what pods hold, and who

A Lease is the truth about its GPU. A `holderIdentity` always counts as the whole GPU: an annotation never lowers it.
"""

from datetime import datetime

from carrel.dialects.interface import Dialect, Reading
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.ledger.gpus import MiB
from carrel.ledger.requests import WHOLE, Amount, Memory, Request
from carrel.parsing.fields import whole_number
from carrel.parsing.time import micro_seconds

CHANGED_BY, CHANGE_REASON = "carrel.dev/changed-by", "carrel.dev/reason"
"""On the ConfigMap with what people changed of the configuration: who did it last, and why."""
GPU_COUNT = "carrel.dev/gpu-count"
GPU_MEMORY = "carrel.dev/gpu-memory-mib"
GPU_MODEL = "carrel.dev/gpu-model"
GANG_SIZE = "carrel.dev/gang-size"
BOOKING = "carrel.dev/booking"
NEXT = "next"
"""As the booking's id: the person's booking that starts next."""
NO_SUCCESSOR = "carrel.dev/no-successor"
ASKED = frozenset({GPU_COUNT, GPU_MEMORY, GPU_MODEL, GANG_SIZE, BOOKING, NO_SUCCESSOR})
"""What a user may write."""
EXEMPT = "carrel.dev/exempt"
WHEN_FULL = "carrel.dev/when-full"
REVOCATION_GRACE = "carrel.dev/revocation-grace"
"""What an admin may write on a Namespace."""
SEES_GPUS = "carrel.dev/sees-gpus"
"""What an admin may write on a Namespace as a label: the API server must be able to select it."""
INSTALLED_IN = "carrel.dev/installed-in"
"""On the ClusterRole that marks the one installation of a cluster: its namespace."""

LIMITS_PREFIX = "limits.carrel.dev/"
PREFIXES = ("carrel.dev/", "devices.carrel.dev/", "indices.carrel.dev/", LIMITS_PREFIX)
TIER = "carrel.dev/tier"
BOOKED = "booked"
OPPORTUNISTIC = "opportunistic"
USER = "carrel.dev/user"
PRIORITY_CLASS = "carrel-gpu"
"""Of all pods with a tier: a pod's priority can never change, while its tier follows its booking."""
DEVICES = "carrel.dev/devices"
INDICES = "carrel.dev/indices"
SLOTS = "carrel.dev/slots"
CGPU_DISABLE = "carrel.dev/cgpu-disable"
WAITS_UNTIL = "carrel.dev/waits-until"
WOKEN_AT = "carrel.dev/woken-at"
GPUS_LENT = "carrel.dev/gpus-lent"
LEAVE_BY = "carrel.dev/leave-by"
NOTICE = "carrel.dev/notice"
WARNED = "carrel.dev/warned"
HANDED_OVER = "carrel.dev/handed-over"
RUNS_WITHOUT_GPU = "carrel.dev/runs-without-gpu"
ASKED_FOR = "carrel.dev/asked-for"
UNLISTED_SPAWNER = "carrel.dev/unlisted-spawner"
HUB_ADDRESS = "carrel.dev/hub-address"
"""Only a hub that is listed may write it; from others it is removed like what only Carrel writes."""
RESERVED_LEASE = "carrel.dev/lease"

LEASE_GPU = "carrel.dev/gpu"
LEASE_SHARES = "carrel.dev/shares"
LEASE_KEPT_FOR = "carrel.dev/kept-for"
LEASE_RESERVATION = "carrel.dev/reservation"
RULES = "carrel.dev/rules"
UNUSABLE = "carrel.dev/unusable"
SHADOW = "carrel.dev/shadow"
SHADOW_HOLDER = "carrel.dev/holder"


# --- what a pod asks for ---------------------------------------------------------------------------------------------


def request_of(pod: Pod, reading: Reading) -> Request | None:
    notes, where = pod.metadata.annotations, subject(pod.metadata)
    if GPU_COUNT not in notes and GPU_MEMORY not in notes:
        return None
    amount: Amount = WHOLE
    if GPU_MEMORY in notes:
        amount = Memory(MiB(whole_number(notes[GPU_MEMORY], where, annotation_field(GPU_MEMORY), at_least=1)))
    return Request(whole_number(notes.get(GPU_COUNT, "1"), where, annotation_field(GPU_COUNT), at_least=1), amount)


def gang_size_of(pod: Pod) -> int | None:
    """None if the pod does not say."""
    text = pod.metadata.annotations.get(GANG_SIZE)
    return None if text is None else whole_number(text, subject(pod.metadata), annotation_field(GANG_SIZE), at_least=1)


def write_woken(now: datetime) -> dict[str, str]:
    return {WOKEN_AT: micro_seconds(now)}


# --- the dialect -----------------------------------------------------------------------------------------------------

DIALECT = Dialect(
    name="carrel",
    words=f"{GPU_COUNT} or {GPU_MEMORY}",
    example="carrel-memory.yaml",
    request_of=request_of,
    annotations=(GPU_COUNT, GPU_MEMORY),
    other_annotations=(GPU_MODEL, GANG_SIZE, BOOKING),
    may_change=(GANG_SIZE,),
)
