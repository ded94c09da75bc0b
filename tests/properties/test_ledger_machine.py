"""A state machine drives the ledger against a model so small that it is obviously right.

The model is a list of GPUs and a list of (pod, GPU, MiB); everything is counted anew on every question.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import combinations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from carrel.ids import BookingId, GpuUuid, NodeName, PersonId, PodUid
from carrel.ledger.coverage import (
    Entitlement,
    PersonsPod,
    RevocableRoom,
    cover_holders,
    cover_waiting,
    uses_of,
)
from carrel.ledger.gpus import Gpu, MiB, Node, shareable, total_of
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, candidates, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import (
    ANY_GPU,
    WHOLE,
    Amount,
    GpuPolicy,
    GpuSelector,
    Memory,
    Portion,
    Request,
    Topology,
    TopologyMode,
)
from carrel.ledger.shares import Coverage, Holder, Share, ShareState
from tests.kit.gpus import N1, N2, N3

NODES = (N1, N2, N3)
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
BOOKED = Entitlement(BookingId("b"), frozenset({PersonId("ada")}), "", 2, NOON, NOON + timedelta(days=9))


@dataclass
class Model:
    """What must be true, said as plainly as possible."""

    nodes: dict[str, Node] = field(default_factory=dict)
    shares: dict[tuple[str, str], tuple[int | None, ShareState]] = field(default_factory=dict)  # (uid, GPU) → MiB
    kept: dict[str, str] = field(default_factory=dict)  # GPU → uid

    def free(self, gpu: Gpu) -> int:
        held = [memory for (_, uuid), (memory, _) in self.shares.items() if uuid == gpu.uuid]
        return gpu.memory - sum(gpu.memory if memory is None else memory for memory in held)

    def is_all_of(self, gpu: Gpu, amount: Amount) -> bool:
        """Whether somebody asks for more than pods may share, of a GPU that nobody has a part of."""
        whole = isinstance(amount, Memory) and gpu.memory < amount.mib <= total_of(gpu.memory)
        return whole and self.free(gpu) == gpu.memory

    def will_do(self, gpu: Gpu, request: Request, uid: str) -> bool:
        slowest = request.topology.min_bandwidth_gbps if request.topology.mode is TopologyMode.REQUIRED else 0
        return (
            not gpu.unusable
            and self.kept.get(gpu.uuid, uid) == uid
            and request.model in ("", gpu.model)
            and allowed(gpu, request.selector)
            and gpu.bandwidth_gbps >= slowest
            and (self.free(gpu) >= request.amount.on(gpu.memory) or self.is_all_of(gpu, request.amount))
        )

    def fits(self, node: str, request: Request, uid: str) -> bool:
        if node not in self.nodes or self.nodes[node].unusable:
            return False
        able = [gpu for gpu in self.nodes[node].gpus if self.will_do(gpu, request, uid)]
        return any(
            request.topology.mode is not TopologyMode.REQUIRED
            or len(gpus) == 1
            or (gpus[0].island != "" and len({gpu.island for gpu in gpus}) == 1)
            for gpus in combinations(able, request.gpus)
        )


def allowed(gpu: Gpu, selector: GpuSelector) -> bool:
    """Models here are one letter each, so a part of a name is the name."""
    return (
        (not selector.models or gpu.model in selector.models)
        and gpu.model not in selector.not_models
        and all(uuid in selector.uuids for uuid in (gpu.may_be or {gpu.uuid}) if selector.uuids)
        and not any(uuid in selector.not_uuids for uuid in (gpu.may_be or {gpu.uuid}))
        and (not selector.only or gpu.uuid in selector.only)
        and gpu.uuid not in selector.not_on
    )


sizes = st.sampled_from([1000, 1001, 4000])
amounts: st.SearchStrategy[Amount] = st.one_of(
    st.integers(1, 2500).map(lambda mib: Memory(MiB(mib))),
    st.sampled_from([Fraction(1, 2), Fraction(1, 3), Fraction(99, 100)]).map(Portion),
    st.just(WHOLE),
)
topologies = st.builds(Topology, st.sampled_from(TopologyMode), st.sampled_from([0, 300]))
some_models = st.lists(st.sampled_from("BX"), max_size=2).map(tuple)
some_uuids = st.one_of(
    st.just(frozenset[str]()),
    st.frozensets(st.builds("GPU-{}-{}".format, st.sampled_from(NODES), st.integers(0, 4)), max_size=6),
)
selectors = st.one_of(
    st.just(ANY_GPU),
    st.builds(GpuSelector, models=some_models, not_models=some_models, uuids=some_uuids, not_uuids=some_uuids),
    st.builds(GpuSelector, uuids=some_uuids, only=some_uuids, not_on=some_uuids),
)
requests = st.builds(
    Request,
    gpus=st.integers(1, 4),
    amount=amounts,
    model=st.sampled_from(["", "", "X", "B"]),
    policy=st.sampled_from(GpuPolicy),
    prefer_ids=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    topology=topologies,
    selector=selectors,
)


memories = st.one_of(sizes.map(MiB), st.builds(lambda mib, kept: shareable(mib, mib + kept), sizes, st.integers(1, 9)))
"""Also of GPUs whose drivers keep some."""


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    name = draw(st.sampled_from(NODES))
    ids = draw(st.lists(st.integers(0, 4), max_size=5, unique=True))
    indices = draw(st.permutations(range(len(ids))))
    gpus = tuple(
        Gpu(
            uuid=GpuUuid(f"GPU-{name}-{identity}"),
            node=NodeName(name),
            index=index,
            model=draw(st.sampled_from(["X", "B"])),
            memory=draw(memories),
            island=draw(st.sampled_from(["", "x", "y"])),
            bandwidth_gbps=draw(st.sampled_from([64, 600])),
            unusable=draw(st.sampled_from(["", "", "", "unhealthy: XID 79"])),
            may_be=draw(st.sampled_from([frozenset[str](), frozenset({f"GPU-{name}-0", f"GPU-{name}-1"})])),
        )
        for identity, index in zip(ids, indices, strict=True)
    )
    return Node(NodeName(name), gpus, unusable=draw(st.sampled_from(["", "", "", "", "its agent is silent"])))


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.model = Model()
        self.born = 0
        self.adas: dict[str, PersonsPod] = {}

    pods = Bundle("pods")

    @rule(node=nodes())
    def a_node_reports_its_gpus(self, node: Node) -> None:
        self.ledger.set_node(node)
        self.model.nodes[node.name] = node

    @rule(name=st.sampled_from(NODES))
    def a_node_is_lost(self, name: str) -> None:
        self.ledger.remove_node(NodeName(name))
        self.model.nodes.pop(name, None)

    @rule(target=pods, request=requests, node=st.sampled_from(NODES))
    def a_pod_arrives(self, request: Request, node: str) -> object:
        self.born += 1
        pod = Holder(PodUid(f"uid-{self.born}"), "lab", f"pod-{self.born}")
        return pod if self._bind(pod, request, node) else multiple()

    @rule(pod=pods, request=requests, node=st.sampled_from(NODES))
    def a_booked_pod_comes_for_its_gpu(self, pod: Holder, request: Request, node: str) -> None:
        if not any(uid == pod.uid for uid, _ in self.model.shares):
            self._bind(pod, request, node)

    @rule(target=pods, request=requests, node=st.sampled_from(NODES))
    def a_pod_of_a_person_with_a_booking_arrives(self, request: Request, node: str) -> object:
        """It is placed as the booking tells it, and then the booking covers it."""
        self.born += 1
        now = NOON + timedelta(minutes=self.born)
        pod = Holder(PodUid(f"uid-{self.born}"), "lab", f"pod-{self.born}")
        self.adas[pod.uid] = PersonsPod(pod, PersonId("ada"), "lab", now, None, request, NODES)
        uses = uses_of([BOOKED])
        holding = cover_holders(self.ledger, uses, self.adas.values())
        room = RevocableRoom(self.ledger, lambda uid: uid not in holding)
        told = cover_waiting(room, uses, [self.adas[pod.uid]]).get(pod.uid)
        asked = told.narrowed(request) if told is not None else request
        if not self._bind(pod, asked, node, Coverage(BookingId("b"), now) if told is not None else None):
            return multiple()
        covered = cover_holders(self.ledger, uses_of([BOOKED]), self.adas.values())
        assert told is None or pod.uid in covered
        return pod

    @invariant()
    def a_booking_covers_no_more_than_was_booked(self) -> None:
        uses = uses_of([BOOKED])
        covered = cover_holders(self.ledger, uses, self.adas.values())
        assert len({gpu for uid in covered for gpu in self.ledger.shares_of(uid)}) <= BOOKED.gpus
        assert uses[BookingId("b")].count <= BOOKED.gpus

    def _bind(self, pod: Holder, request: Request, node: str, coverage: Coverage | None = None) -> bool:
        answer = place(self.ledger, request, NodeName(node), pod.uid)
        assert isinstance(answer, Placement) == self.model.fits(node, request, pod.uid)
        if isinstance(answer, Refusal):
            assert answer.reason
            return False
        assert len(set(answer.gpus)) == request.gpus
        answer = replace(answer, coverage=coverage)
        for gpu, share in zip(answer.gpus, answer.shares(pod), strict=True):
            assert self.model.will_do(gpu, request, pod.uid)
            self.ledger.hold(share)
            self.model.shares[pod.uid, gpu.uuid] = (share.memory, ShareState.ASSUMED)
        return True

    @rule(pod=pods)
    def the_node_hands_the_gpus_over(self, pod: Holder) -> None:
        self.ledger.assign(pod.uid)
        self._move(pod, {ShareState.ASSUMED: ShareState.ASSIGNED})

    @rule(pod=pods)
    def a_pod_is_told_to_go(self, pod: Holder) -> None:
        self.ledger.release(pod.uid)
        self._move(pod, dict.fromkeys(ShareState, ShareState.RELEASING))

    def _move(self, pod: Holder, life: dict[ShareState, ShareState]) -> None:
        for key, (memory, state) in self.model.shares.items():
            if key[0] == pod.uid:
                self.model.shares[key] = (memory, life.get(state, state))

    @rule(pod=pods)
    def a_bind_fails(self, pod: Holder) -> None:
        self.ledger.give_back(pod.uid)
        self._drop(pod)

    @rule(pod=consumes(pods))
    def a_pod_is_gone(self, pod: Holder) -> None:
        self.ledger.forget(pod.uid)
        self._drop(pod)
        self.model.kept = {gpu: uid for gpu, uid in self.model.kept.items() if uid != pod.uid}

    def _drop(self, pod: Holder) -> None:
        self.model.shares = {key: value for key, value in self.model.shares.items() if key[0] != pod.uid}

    @rule(pod=pods, node=st.sampled_from(NODES), identity=st.integers(0, 4))
    def a_gpu_is_kept(self, pod: Holder, node: str, identity: int) -> None:
        uuid = f"GPU-{node}-{identity}"
        if self.model.kept.get(uuid, pod.uid) == pod.uid:
            self.ledger.keep(GpuUuid(uuid), pod)
            self.model.kept[uuid] = pod.uid

    @rule(node=st.sampled_from(NODES), identity=st.integers(0, 4), tell=st.lists(pods, max_size=3), keep=st.booleans())
    def the_lease_of_a_gpu_is_read(self, node: str, identity: int, tell: list[Holder], keep: bool) -> None:
        """Whatever it says is believed: also more than the GPU has."""
        uuid = f"GPU-{node}-{identity}"
        told = {pod.uid: Share(pod, GpuUuid(uuid), MiB(700), ShareState.ASSIGNED) for pod in tell}
        kept = tell[0] if tell and keep else None
        self.ledger.set_entry(GpuUuid(uuid), told.values(), kept)
        self.model.shares = {key: value for key, value in self.model.shares.items() if key[1] != uuid}
        self.model.shares |= {(uid, uuid): (share.memory, share.state) for uid, share in told.items()}
        self.model.kept.pop(uuid, None)
        if kept:
            self.model.kept[uuid] = kept.uid

    @rule(node=nodes(), name=st.sampled_from(NODES), pod=pods)
    def several_changes_come_before_anybody_asks(self, node: Node, name: str, pod: Holder) -> None:
        self.a_node_is_lost(name)
        self.the_node_hands_the_gpus_over(pod)
        self.a_node_reports_its_gpus(node)
        self.a_node_is_lost(node.name)
        self.a_node_reports_its_gpus(node)

    @rule()
    def carrel_restarts(self) -> None:
        shares = [share for uid in self.ledger.holders() for share in self.ledger.shares_of(uid).values()]
        self.ledger = Ledger(self.model.nodes.values(), shares)
        for uuid, uid in self.model.kept.items():
            self.ledger.keep(GpuUuid(uuid), Holder(PodUid(uid)))

    @rule(pod=pods, request=requests, node=st.sampled_from(NODES))
    def somebody_wonders_what_if(self, pod: Holder, request: Request, node: str) -> None:
        with self.ledger.what_if():
            self.ledger.forget(pod.uid)
            self.ledger.restore([Share(Holder(PodUid("ghost")), GpuUuid(f"GPU-{node}-0"), MiB(3))])
            with self.ledger.what_if():
                answer = place(self.ledger, request, NodeName(node), PodUid("dreamer"))
                for share in answer.shares(Holder(PodUid("dreamer"))) if isinstance(answer, Placement) else ():
                    self.ledger.hold(share)
                self.ledger.release(PodUid("dreamer"))
            self.ledger.audit()

    @invariant()
    def the_book_is_the_model(self) -> None:
        self.ledger.audit()
        in_book = {
            (uid, gpu): (share.memory, share.state)
            for uid in self.ledger.holders()
            for gpu, share in self.ledger.shares_of(uid).items()
        }
        assert in_book == self.model.shares
        for node in self.model.nodes.values():
            assert [entry.gpu for entry in self.ledger.entries(node.name)] == sorted(
                node.gpus, key=lambda gpu: gpu.index
            )
            for entry in self.ledger.entries(node.name):
                assert entry.free == self.model.free(entry.gpu)

    @rule(request=requests, asker=st.one_of(st.just("nobody"), pods.map(lambda pod: pod.uid)))
    def the_fast_answer_is_the_slow_answer(self, request: Request, asker: str) -> None:
        fitting = candidates(self.ledger, request, NODES, PodUid(asker)).fitting
        assert fitting == [name for name in NODES if self.model.fits(name, request, asker)]


TestLedgerMachine = LedgerMachine.TestCase


def test_the_machine_would_notice_a_ledger_that_forgets_to_count() -> None:
    """The model itself is checked once by hand, so that the machine cannot agree with a broken ledger by accident."""
    gpu = Gpu(GpuUuid("GPU-n1-0"), N1, 0, "A", MiB(1000))
    model = Model(nodes={"n1": Node(N1, (gpu,))}, shares={("a", "GPU-n1-0"): (600, ShareState.ASSUMED)})

    assert model.free(gpu) == 400
    assert model.fits("n1", Request(1, Memory(MiB(400))), "b")
    assert not model.fits("n1", Request(1, Memory(MiB(401))), "b")
    assert not model.fits("n1", Request(1, WHOLE), "b")
    assert not model.fits("n1", replace(Request(1, Memory(MiB(1))), model="B"), "b")
