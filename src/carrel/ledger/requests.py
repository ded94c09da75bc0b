"""What a pod asks for, in whichever dialect: a number of GPUs, an amount of each, and which ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction

from carrel.ids import GpuUuid
from carrel.ledger.gpus import Gpu, MiB, MigSlice, Node, total_of


@dataclass(frozen=True, slots=True)
class Memory:
    """An amount of a GPU in MiB, the same on every GPU asked for.

    More than pods may share of a GPU, and no more than it has, is the GPU alone: who knows its size asks for all of it.
    """

    mib: MiB

    def on(self, gpu_memory: MiB) -> MiB:
        if self.mib <= gpu_memory or self.mib > total_of(gpu_memory):
            return self.mib
        return MiB(int(gpu_memory))

    def __str__(self) -> str:
        return f"{self.mib:,} MiB"


@dataclass(frozen=True, slots=True)
class Portion:
    """An amount of a GPU as a part of its memory, 0 < part ≤ 1; the whole GPU is the part 1.

    Rounded down, so that two halves of a GPU with an odd number of MiB fit on it. A part that would come to nothing
    cannot be had: it is more than the GPU has.
    """

    part: Fraction

    def on(self, gpu_memory: MiB) -> MiB:
        return MiB(gpu_memory * self.part.numerator // self.part.denominator or gpu_memory + 1)

    def __hash__(self) -> int:
        """A Fraction's own is slow, and thousands of requests are looked up at once."""
        return hash((self.part.numerator, self.part.denominator))

    def __str__(self) -> str:
        return "a whole GPU" if self.part == 1 else f"{float(self.part):.4g} of a GPU"


Amount = Memory | Portion

WHOLE = Portion(Fraction(1))
"""A GPU alone: it leaves no memory for anyone else, and needs a GPU that nobody holds a part of."""


class GpuPolicy(Enum):
    """The order in which suitable GPUs are taken."""

    PACK = "pack"
    """The fullest GPU that fits, so that large free pieces stay large."""
    EMPTIEST = "emptiest"
    """The emptiest GPUs; of several, on as few islands as when packing. No pod asks for it, only a setting."""
    SPREAD = "spread"
    """The emptiest GPUs, on as many islands as possible."""
    CONTIGUOUS = "contiguous"
    """Neighbouring indices first."""
    PREFER_IDS = "preferIds"
    """The named indices first."""


class TopologyMode(Enum):
    """Whether the GPUs of a request must be linked by NVLink."""

    REQUIRED = "Required"
    """All GPUs in one NVLink island, or the pod waits."""
    PREFERRED = "Preferred"
    """One island if possible."""
    IGNORE = "Ignore"


@dataclass(frozen=True, slots=True)
class Topology:
    """How the GPUs of a request must be linked: the mode, and the bandwidth of the links."""

    mode: TopologyMode = TopologyMode.PREFERRED
    min_bandwidth_gbps: int = 0


@dataclass(frozen=True, slots=True)
class Gang:
    """A group of pods that are placed together or not at all. Its name includes the namespace: `lab/training-job`."""

    name: str
    size: int
    unplanned: str = field(default="", compare=False)
    """Why it cannot be placed as long as no member runs, whatever is free; empty: nothing is in the way."""


@dataclass(frozen=True, slots=True)
class ContainerNeed:
    """The part of a pod's request that one container uses: a number of its GPUs, an amount of each."""

    container: str
    gpus: int
    amount: Amount
    init: bool = False
    """An init container runs before the others and uses GPUs that they will have: it does not add to them. A sidecar
    runs beside them, so it is none."""


@dataclass(frozen=True, slots=True)
class GpuSelector:
    """The GPUs that a request may have, by model and by UUID; an empty selector allows every GPU.

    Models are given by a part of their name. Upper and lower case are alike, so are a space and a hyphen, and the maker
    `NVIDIA` may stand before every name. A GPU whose model or UUID is not known is not allowed where it matters.
    """

    models: tuple[str, ...] = ()
    """One of these must be in the name of the model. Empty: any model."""
    not_models: tuple[str, ...] = ()
    """None of these may be in the name of the model."""
    uuids: frozenset[GpuUuid] = frozenset()
    """Only these GPUs. Empty: any GPU."""
    not_uuids: frozenset[GpuUuid] = frozenset()
    """Not these GPUs."""
    only: frozenset[GpuUuid] = frozenset()
    """The same two, as the ledger names GPUs, slots included: never asked for by a user, but decided by `coverage`."""
    not_on: frozenset[GpuUuid] = frozenset()

    @property
    def names_uuids(self) -> bool:
        return bool(self.uuids or self.not_uuids or self.only or self.not_on)

    def without_uuids(self) -> "GpuSelector":
        """Only what is said about models."""
        return GpuSelector(self.models, self.not_models) if self.names_uuids else self

    def allows_model(self, model: str) -> bool:
        if not (self.models or self.not_models):
            return True
        name = _model_name(f"NVIDIA-{model}") if model else ""
        if self.models and not any(_model_name(part) in name for part in self.models):
            return False
        return bool(name) and not any(_model_name(part) in name for part in self.not_models)

    def allows_uuid(self, gpu: Gpu) -> bool:
        if not self.names_uuids:
            return True
        if (self.only and gpu.uuid not in self.only) or gpu.uuid in self.not_on:
            return False
        possible = gpu.possible_uuids
        return (not self.uuids or possible <= self.uuids) and possible.isdisjoint(self.not_uuids)

    def allows(self, gpu: Gpu) -> bool:
        return self.allows_uuid(gpu) and self.allows_model(gpu.model)

    def __str__(self) -> str:
        """A part of a sentence, with a space before it; empty if every GPU is allowed."""
        words = [f"of a model like {' or '.join(self.models)}"] if self.models else []
        words += [f"not of a model like {' or '.join(self.not_models)}"] if self.not_models else []
        words += [f"out of {', '.join(sorted(self.uuids))}"] if self.uuids else []
        words += [f"except {', '.join(sorted(self.not_uuids))}"] if self.not_uuids else []
        return "".join(f" {each}" for each in words)


def _model_name(text: str) -> str:
    return text.upper().replace(" ", "-")


ANY_GPU = GpuSelector()


def are_dealt_out(needs: Sequence[ContainerNeed]) -> bool:
    """Whether each container gets whole GPUs of its own. Containers with parts of GPUs all see the same GPUs."""
    return len(needs) > 1 and all(need.amount == WHOLE for need in needs)


ANY_SLICE = "any"
"""Instead of a profile: MIG slices of whichever one, also where they are advertised as GPUs."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a pod asks for: `gpus` different GPUs of one node, `amount` of each, and which GPUs will do."""

    gpus: int
    amount: Amount
    model: str = ""
    """As `nvidia.com/gpu.product` spells it. Empty: any."""
    selector: GpuSelector = ANY_GPU
    """Which other GPUs are ruled out; `model` counts as well."""
    policy: GpuPolicy = GpuPolicy.PACK
    prefer_ids: tuple[int, ...] = ()
    topology: Topology = Topology()
    node_labels: frozenset[tuple[str, str]] = frozenset()
    gang: Gang | None = None
    is_limited: bool = False
    """Its containers have limits of GPU memory, so that they start only where these can be set."""
    containers: tuple[ContainerNeed, ...] = field(default=(), compare=False)
    """Who in the pod uses it. Does not matter to placement, so it does not make two requests different."""
    by_kubelet: bool = field(default=False, compare=False)
    """The pod asks the kubelet for its GPUs itself, by `nvidia.com/gpu`: where that chooses, no more is needed."""
    remark: str = field(default="", compare=False)
    """What the pod asks for besides, which the ledger does not count: for people."""
    spreads_over_nodes: bool | None = field(default=None, compare=False)
    """Whether the emptiest node is preferred to the fullest one that fits. None: as the cluster is set."""
    slices: str = ""
    """The profile of the MIG slices that are asked for. Empty: GPUs, and slices where they are advertised as GPUs."""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"a request is for at least one GPU, not {self.gpus}")

    def __hash__(self) -> int:
        """Hash what makes most requests different: the hash of all parts would cost more than what it is for."""
        return hash((self.gpus, self.amount, self.model, self.selector.only))

    def on_any_covered(self) -> "Request":
        """Without what `coverage` decided about single GPUs: it says that only of pods that wait."""
        if not (self.selector.only or self.selector.not_on):
            return self
        return replace(self, selector=replace(self.selector, only=frozenset(), not_on=frozenset()))

    def allows_model(self, model: str) -> bool:
        is_it = not self.model or model == self.model
        return is_it and (self.selector is ANY_GPU or self.selector.allows_model(model))

    def allows_slice(self, of: MigSlice | None) -> bool:
        """Whether it may have such a part of a GPU; None: a GPU that is not divided. No program uses two slices as one
        GPU, so nobody has parts of several; and NVIDIA's driver limits no memory inside one."""
        if of is None:
            return not self.slices
        if self.avoids_slices:
            return False
        if not self.slices:
            return of.is_gpu
        return self.slices == ANY_SLICE or (self.slices == of.profile and not of.is_gpu)

    @property
    def avoids_slices(self) -> bool:
        """Whether no MIG slice will do: it is for parts of several GPUs, or its containers have limits of memory."""
        return self.is_limited or (self.gpus > 1 and self.amount != WHOLE)

    def selects(self, node: Node | None) -> bool:
        """Whether the node has the labels that are asked for, and limits memory if that is needed."""
        return (
            node is not None
            and self.node_labels <= node.labels.items()
            and not (self.is_limited and node.why_no_limits)
        )

    @property
    def needs_one_island(self) -> bool:
        """One GPU is always together with itself."""
        return self.gpus > 1 and self.topology.mode is TopologyMode.REQUIRED

    def __str__(self) -> str:
        where = f" of model {self.model}" if self.model else ""
        where += str(self.selector)
        if self.gpus > 1 and self.topology.mode is TopologyMode.REQUIRED:
            where += " in one NVLink island"
        if self.slices:
            where = f"{'s' * (self.gpus > 1)} {'' if self.slices == ANY_SLICE else self.slices}".rstrip() + where
            return f"{self.gpus} MIG slice{where}" if self.amount == WHOLE else f"{self.amount} on one MIG slice{where}"
        if self.amount == WHOLE:
            return f"{self.gpus} whole GPU{'s' if self.gpus > 1 else ''}{where}"
        if self.gpus == 1:
            return f"{self.amount} on one GPU{where}"
        return f"{self.amount} on each of {self.gpus} GPUs{where}"
