"""What a dialect is: one object that holds everything Carrel must know about one way of asking for GPUs.

Each dialect has a file of its own with a constant `DIALECT`; `registry` lists them, one line each. All other code asks
the registry, or the `dialect` of a `PodRequest`, and never compares dialects by name. To add a dialect, write its file,
add its line to the registry, and add its words to `manifests/webhooks.yaml` and `policies.yaml` (a test compares them).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from carrel.dialects.gpuclaim_objects import GpuClaim
from carrel.dialects.options import DEFAULT_DIALECT_OPTIONS, DialectOptions
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Request
from carrel.ledger.shares import Holder

if TYPE_CHECKING:  # settings know dialects' words, and need no ledger to be read
    from carrel.ledger.placement import Placement

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a dialect needs besides the pod to read a request."""

    options: DialectOptions = DEFAULT_DIALECT_OPTIONS
    claim: GpuClaim | None = None
    """The GpuClaim that the pod names, for a dialect with `claim_name`."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod asks for, and in which dialect."""

    dialect: "Dialect"
    request: Request
    claim: str = ""
    """The GpuClaim it came from, in the pod's namespace."""


@dataclass(frozen=True, slots=True)
class ClaimedGpus:
    """What a pod asks for by ResourceClaims."""

    names: frozenset[str] = frozenset()
    """Of its claims for GPUs, within the pod; and the resources for which a scheduler makes a claim."""
    request: Request | None = None


NOTHING_CLAIMED = ClaimedGpus()


@dataclass(frozen=True, slots=True)
class PodBinding:
    """What is known when a pod is bound to its GPUs."""

    pod_request: PodRequest
    placement: "Placement"
    """With the real GPUs, also where the kubelet chooses them."""
    holder: Holder
    assumed_at_ns: int
    options: DialectOptions
    node_labels: Mapping[str, str] = field(default_factory=dict)


ToldGpus = Mapping[int | str, int]
"""Index or UUID of a GPU → how much of it, in any unit; 0: that is not said."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Dialect:
    """One way of asking for GPUs."""

    name: str
    """One word, for docs and file names."""
    words: str
    """The words by which people know it, for messages."""
    example: str
    """A manifest in this dialect: a file of `examples/`, which a test runs."""

    # --- what it reads from a pod ---
    request_of: Callable[[Pod, Reading], Request | Refusal | None]
    """What the pod asks for, without its gang and without the words that every dialect shares. Raises `Malformed`."""
    resources: tuple[str, ...] = ()
    """A pod that asks for more than zero of one of these speaks this dialect."""
    resource_prefix: str = ""
    """So does one that asks for a resource whose name begins so. Empty: no such."""
    annotations: tuple[str, ...] = ()
    """A pod with one of these speaks this dialect."""
    takes_over: tuple[str, ...] = ()
    """Resources of another dialect that belong to this one on a pod that speaks it."""
    qualifiers: tuple[str, ...] = ()
    """Annotations that make a pod which asks for one of `takes_over` speak this dialect."""
    claim_name: Callable[[Pod], str] | None = None
    """The GpuClaim that the pod names. It may be created after the pod, so admission cannot read the request."""
    assumed: Callable[[Pod, Reading], Request] = lambda pod, reading: Request(1, WHOLE)
    """What a pod counts as asking for while its GpuClaim does not exist."""
    other_annotations: tuple[str, ...] = ()
    """Further annotations that users write. Taken off a pod that goes on without a GPU, like those above."""
    may_change: tuple[str, ...] = ()
    """Those of a user's annotations that may be changed after the pod was created; all others are settled."""
    scheduler_names: tuple[str, ...] = ()
    """Schedulers of the peer whose place Carrel takes: a pod that names one is scheduled by Carrel."""

    any_scheduler: bool = False
    """Whether any scheduler places its pods, and not Carrel's alone; then the container runtime shows the GPUs."""

    # --- what the webhook records ---
    recorded: str = ""
    """The annotation in which the webhook records the request of a pod, because it takes the resources off the pod:
    for a dialect whose resources no node advertises. The seal covers it. All readers then read the record."""
    record_of: Callable[[Pod], str] | None = None
    """The text of that annotation."""

    # --- what it tells the pod ---
    bind_annotations: Callable[[PodBinding], dict[str, str]] = lambda binding: {}
    """Written on the pod with its Binding, besides Carrel's own words."""
    variables: Callable[[Pod, Mapping[str, Any]], Sequence[Json]] = lambda pod, container: ()
    """Environment of a container that uses a GPU, besides the variables by which it sees the GPU."""
    variable_names: tuple[str, ...] = ()
    """These variables are taken off a pod that goes on without a GPU."""
    variable_sources: tuple[str, ...] = ()
    """So are variables, of whatever name, that read one of these annotations."""

    # --- what a peer has told the pod ---
    told_gpus: Callable[[Pod], ToldGpus] = lambda pod: {}
    """Which GPUs of its node the peer's own scheduler gave to the pod; none: it does not say. For pods that no Lease
    names, whatever dialect they speak. A user could have written it. Raises `Malformed`."""

    # --- which keys it protects ---
    written_annotations: tuple[str, ...] = ()
    written_labels: tuple[str, ...] = ()
    written_label_prefixes: tuple[str, ...] = ()
    """Only a scheduler writes them; the webhook strips them from what users create."""

    # --- what it advertises on a node ---
    advertises: tuple[str, ...] = ()
    """Resources of a node whose devices the kubelet hands over to containers."""
    node_labels: tuple[str, ...] = ()
    """Labels of nodes with GPUs. A pod that goes on without a GPU must not select nodes by them."""
    filtered_out: Callable[[str, str, bool], str] | None = None
    """The peer's sentence for a node that was filtered out, by which its tools know it: of the node, our reason, and
    whether the node has GPUs. None: our reason alone."""
