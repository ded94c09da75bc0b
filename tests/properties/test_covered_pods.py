"""What the index of covered pods remembers is always what would be found by working everything out again.

Objects change on a server, and a process reads one kind after another, in any order: so a booking arrives before or
after the pods, a Lease before its pod, a claim after the pod that refers to it.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.cluster.coverage.covered_pods import CoveredPods
from carrel.cluster.options import ClusterOptions
from carrel.cluster.state import ClusterState
from carrel.cluster.waiting.person_limit import PersonLimit
from carrel.dialects.gpu_lease import LeaseRecord, lease_name, write_lease
from carrel.ids import BookingId, GpuUuid, NodeName, PersonId, PodUid
from carrel.kubernetes.cluster import EVERYTHING, ListPage, Selection
from carrel.kubernetes.objects.resources import Resource
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import LedgerError
from carrel.ledger.placement import Placement
from carrel.ledger.requests import Memory, Request
from carrel.ledger.shares import Coverage, Holder, Share
from carrel.ledger.tiers import TierPolicy
from carrel.parsing.time import seconds
from tests.kit.gpus import A100, A6000

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
PEOPLE = ("ada", "bob")
BOOKINGS, PODS, NODES, GPUS = ("b0", "b1", "b2"), ("p0", "p1", "p2", "p3"), ("n1", "n2"), (0, 1)
CHANGED = ("what has changed",)
KINDS = ("pods", "bookings", "leases", "nodes", "gpunodestatuses", "namespaces", "gpuclaims")
ASKED: dict[str, dict[str, str]] = {
    "one": {"carrel.dev/gpu-count": "1"},
    "two": {"carrel.dev/gpu-count": "2"},
    "part": {"carrel.dev/gpu-memory-mib": "400"},
    "half": {"gpu-fraction": "0.5"},
    "a100": {"carrel.dev/gpu-count": "1", "carrel.dev/gpu-model": A100},
    "claim": {"gpu.scheduling/claim": "c0"},
    "wrong": {"carrel.dev/gpu-memory-mib": "99999"},
    "unreadable": {"carrel.dev/gpu-count": "many"},
}


class Server:
    """Has objects, and lists them: enough for a reflector that is told when to read."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = {kind: {} for kind in KINDS}
        self.changed = dict.fromkeys(KINDS, 0)

    async def list(self, resource: Resource[Any], selection: Selection = EVERYTHING, **_: Any) -> ListPage[Any]:
        found = self.objects.get(resource.plural, {}).values()
        items = [msgspec.convert(each, resource.object_type) for each in found]
        return ListPage(items, str(self.version))

    def put(self, kind: str, name: str, body: dict[str, Any], namespace: str = "") -> None:
        self.version += 1
        self.changed[kind] = self.version
        before = self.objects[kind].get((namespace, name), {"metadata": {"uid": f"{kind}-{name}-{self.version}"}})
        metadata = {"name": name, "namespace": namespace, "uid": before["metadata"]["uid"]}
        metadata |= {"resourceVersion": str(self.version), **body.get("metadata", {})}
        self.objects[kind][namespace, name] = {**body, "metadata": metadata}

    def drop(self, kind: str, name: str, namespace: str = "") -> None:
        self.version += 1
        self.changed[kind] = self.version
        self.objects[kind].pop((namespace, name), None)


class Story:
    def __init__(self) -> None:
        self.now = NOON
        self.server = Server()
        options = ClusterOptions(now=lambda: self.now)
        self.state = ClusterState(self.server, options)  # type: ignore[arg-type] # only lists are asked for
        self.reflectors = {each.resource.plural: each for each in self.state.informers.reflectors}
        self.promised: dict[str, str] = {}
        for node in NODES:
            self.report(node, A6000)
            self.server.put("nodes", node, {"metadata": {"labels": {"zone": node}}})
        self.server.put("namespaces", "lab", {})

    def report(self, node: str, model: str) -> None:
        devices = [
            {"id": index, "uuid": f"GPU-{node}-{index}", "model": model, "memoryMiB": 1000, "health": "Healthy"}
            for index in GPUS
        ]
        self.server.put("gpunodestatuses", node, {"status": {"total": len(GPUS), "devices": devices}})

    def uid(self, pod: str) -> str:
        known = self.server.objects["pods"].get(("lab", pod))
        uid: str = known["metadata"]["uid"] if known else f"not-yet-{pod}"
        return uid

    def change_pod(self, pod: str, change: Any) -> None:
        if ("lab", pod) in self.server.objects["pods"]:
            body = msgspec.json.decode(msgspec.json.encode(self.server.objects["pods"]["lab", pod]))
            change(body)
            body["metadata"].pop("resourceVersion")
            self.server.put("pods", pod, body, "lab")

    def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case "book", name, user, members, model, gpus, share_of, start, end:
                times = {"start": self._at(start), "end": self._at(end)}
                spec = {"user": user, "members": list(members), "model": model, "gpus": gpus, "shareOf": share_of}
                self.server.put("bookings", name, {"spec": {**spec, **times}})
            case "status of a booking", name if ("", name) in self.server.objects["bookings"]:
                spec = self.server.objects["bookings"]["", name]["spec"]
                self.server.put("bookings", name, {"spec": spec, "status": {"used": self.server.version}})
            case "cancel", name:
                self.server.drop("bookings", name)
            case "time passes", minutes:
                self.now += timedelta(minutes=minutes)
            case "pod", name, person, asked, zone, wanted if ("lab", name) not in self.server.objects["pods"]:
                notes = {"carrel.dev/user": person, "carrel.dev/booking": wanted, **ASKED[asked]}
                notes["carrel.dev/tier"] = "opportunistic"
                where = {"nodeSelector": {"zone": zone}} if zone else {}
                containers = [{"name": "main", "resources": {}}]
                created = {"annotations": notes, "creationTimestamp": seconds(self.now)}
                self.server.put("pods", name, {"metadata": created, "spec": {"containers": containers, **where}}, "lab")
            case "bound", name, node:
                condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": seconds(self.now)}
                self.change_pod(
                    name,
                    lambda body: body.update(
                        spec={**body["spec"], "nodeName": node},
                        status={"phase": "Running", "conditions": [condition]},
                    ),
                )
            case "ending", name:
                self.change_pod(name, lambda body: body["metadata"].update(deletionTimestamp=seconds(self.now)))
            case "annotated", name, key, value:
                self.change_pod(name, lambda body: body["metadata"]["annotations"].update({key: value}))
            case "gone", name:
                self.server.drop("pods", name, "lab")
            case "lease", node, index, pods, memory, booking:
                coverage = Coverage(booking, self.now) if booking else None
                uuid = f"GPU-{node}-{index}"
                shares = tuple(
                    Share(
                        Holder(PodUid(self.uid(pod)), "lab", pod),
                        GpuUuid(uuid),
                        memory and MiB(memory),
                        coverage=coverage,
                    )
                    for pod in sorted(pods)
                )
                body = write_lease(LeaseRecord(node, index, GpuUuid(uuid), shares), "carrel", self.now)
                body["metadata"].pop("namespace")
                self.server.put("leases", lease_name(node, index), body, "carrel")
            case "no lease", node, index:
                self.server.drop("leases", lease_name(node, index), "carrel")
            case "reports", node, model:
                self.report(node, model)
            case "lost", node:
                self.server.drop("gpunodestatuses", node)
            case "labelled", node, zone:
                self.server.put("nodes", node, {"metadata": {"labels": {"zone": zone}}})
            case "exempt", word:
                self.server.put("namespaces", "lab", {"metadata": {"annotations": {"carrel.dev/exempt": word}}})
            case "claim", count:
                self.server.put("gpuclaims", "c0", {"spec": {"devices": {"count": count}}}, "lab")
            case "no claim", _:
                self.server.drop("gpuclaims", "c0", "lab")
            case "promise", pod, node, booking:
                self._promise(pod, node, booking)
            case "withdraw", pod if pod in self.promised:
                self.state.cluster_ledger.withdraw(PodUid(self.promised.pop(pod)), "me")
            case "what if", pod, node:
                self._ask_in_a_what_if(pod, node)

    def _at(self, minutes: int) -> str:
        return seconds(self.now + timedelta(minutes=minutes))

    def _promise(self, pod: str, node: str, booking: str) -> None:
        there = self.state.ledger.node(NodeName(node))
        if there is None or pod in self.promised:
            return
        coverage = Coverage(BookingId(booking), self.now) if booking else None
        placement = Placement(NodeName(node), there.gpus[:1], Request(1, Memory(MiB(300))), coverage)
        try:
            self.state.cluster_ledger.promise(placement, Holder(PodUid(self.uid(pod)), "lab", pod), "me")
        except LedgerError:
            return
        self.promised[pod] = self.uid(pod)

    def _ask_in_a_what_if(self, pod: str, node: str) -> None:
        with self.state.ledger.what_if():
            for index in GPUS:
                self.state.ledger.restore(
                    [Share(Holder(PodUid(self.uid(pod)), "lab", pod), GpuUuid(f"GPU-{node}-{index}"), None)]
                )
            self.answers(self.state.covered_pods)

    def versions(self) -> dict[str, int]:
        return dict(self.server.changed)

    def changed_since(self, before: dict[str, int]) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if self.server.changed[kind] != before[kind])

    async def read(self, kinds: tuple[str, ...]) -> None:
        for kind in kinds:
            await self.reflectors[kind].read_once()

    # --- what is known -----------------------------------------------------------------------------------------------

    def answers(self, known: CoveredPods) -> dict[str, Any]:
        uids = {pod.metadata.uid for pod in self.state.pods.store} | set(self.state.ledger.holders())
        uses = {name: known.use_of(BookingId(name)) for name in BOOKINGS}
        return {
            "of": {uid: known.of(uid) for uid in uids},
            "waiting": list(known.covered_waiting().items()),
            "booked waiting": known.booked_waiting(),
            "uses": {name: (use.gpus, use.count, use.entitlement) if use else None for name, use in uses.items()},
            "covered by": {name: [pod.metadata.name for pod in known.covered_by(BookingId(name))] for name in BOOKINGS},
            "revocable": {uid: known.is_revocable(uid) for uid in uids},
            "uncovered": {person: self.held_without(known, person) for person in PEOPLE},
            "running": {person: known.running_for(PersonId(person), "lab") for person in PEOPLE},
            "planned": {person: known.planned_for(PersonId(person), "lab") for person in PEOPLE},
        }

    def held_without(self, known: CoveredPods, person: str) -> Fraction:
        state = self.state
        limit = PersonLimit(state.ledger, state.watches, known, state.gone_holders, state.gang_members, TierPolicy())
        return limit.held_by(PersonId(person))

    def check(self) -> None:
        state = self.state
        anew = CoveredPods(state.ledger, state.watches, state.requests, state.eligible_nodes, state.options)
        for pod in self.state.pods.store:
            anew.on_pod(None, pod)
        for booking in self.state.bookings.store:
            anew.on_booking(None, booking)
        known, expected = self.answers(self.state.covered_pods), self.answers(anew)
        for question in expected:
            assert known[question] == expected[question], question
        for booking, use in expected["uses"].items():
            assert use is None or use[1] <= use[2].gpus, f"{booking} covers more than was booked"


pods, nodes, bookings = st.sampled_from(PODS), st.sampled_from(NODES), st.sampled_from(BOOKINGS)
some_booking = st.sampled_from(["", *BOOKINGS])
models = st.sampled_from(["", A100, A6000])
changes = st.one_of(
    st.tuples(
        st.just("book"),
        bookings,
        st.sampled_from(PEOPLE),
        st.frozensets(st.sampled_from(PEOPLE), max_size=2),
        models,
        st.integers(0, 3),
        st.sampled_from([1, 1, 1, 2]),
        st.integers(-10, 10),
        st.integers(0, 30),
    ),
    st.tuples(st.just("status of a booking"), bookings),
    st.tuples(st.just("cancel"), bookings),
    st.tuples(st.just("time passes"), st.integers(0, 12)),
    st.tuples(
        st.just("pod"),
        pods,
        st.sampled_from(["", *PEOPLE]),
        st.sampled_from(sorted(ASKED)),
        st.sampled_from(["", "", *NODES]),
        some_booking,
    ),
    st.tuples(st.just("bound"), pods, nodes),
    st.tuples(st.just("ending"), pods),
    st.tuples(st.just("annotated"), pods, st.just("carrel.dev/user"), st.sampled_from(PEOPLE)),
    st.tuples(st.just("annotated"), pods, st.just("carrel.dev/tier"), st.sampled_from(["opportunistic", "newer"])),
    st.tuples(st.just("annotated"), pods, st.just("carrel.dev/booking"), some_booking),
    st.tuples(st.just("gone"), pods),
    st.tuples(
        st.just("lease"),
        nodes,
        st.sampled_from(GPUS),
        st.frozensets(pods, max_size=2),
        st.sampled_from([300, 500, 600]),
        some_booking,
    ),
    st.tuples(st.just("lease"), nodes, st.sampled_from(GPUS), st.frozensets(pods, max_size=1), st.none(), some_booking),
    st.tuples(st.just("no lease"), nodes, st.sampled_from(GPUS)),
    st.tuples(st.just("reports"), nodes, st.sampled_from([A100, A6000])),
    st.tuples(st.just("lost"), nodes),
    st.tuples(st.just("labelled"), nodes, nodes),
    st.tuples(st.just("exempt"), st.sampled_from(["true", "false"])),
    st.tuples(st.just("claim"), st.integers(1, 2)),
    st.tuples(st.just("no claim"), st.none()),
    st.tuples(st.just("promise"), pods, nodes, some_booking),
    st.tuples(st.just("withdraw"), pods),
    st.tuples(st.just("what if"), pods, nodes),
)
everything = st.permutations(KINDS).map(tuple)
steps = st.tuples(
    changes,
    st.one_of(st.just(CHANGED), st.just(CHANGED), everything, st.just(())),
    st.sampled_from([True, True, False]),
)

BEFORE: tuple[tuple[Any, ...], ...] = (
    ("book", "b0", "ada", frozenset(), "", 1, 1, -10, 20),
    ("book", "b1", "bob", frozenset({"ada"}), A6000, 2, 1, -10, 10),
    ("pod", "p0", "ada", "part", "", ""),
    ("lease", "n1", 0, frozenset({"p0"}), 400, "b0"),
    ("bound", "p0", "n1"),
    ("pod", "p1", "bob", "one", "", ""),
    ("lease", "n2", 0, frozenset({"p1"}), None, ""),
    ("bound", "p1", "n2"),
    ("pod", "p2", "ada", "part", "", ""),
    ("pod", "p3", "bob", "claim", "n1", ""),
)
"""Where every story begins: a booking that is used up, one that two people share, and pods that wait."""


@settings(max_examples=100, deadline=None)
@given(everything, st.lists(steps, min_size=5, max_size=40), everything)
def test_what_is_remembered_is_what_would_be_found_anew(
    first: tuple[str, ...], story: list[tuple[tuple[Any, ...], tuple[str, ...], bool]], last: tuple[str, ...]
) -> None:
    async def run() -> None:
        lab = Story()
        for change in BEFORE:
            lab.do(change)
        await lab.read(first)
        lab.check()
        for change, kinds, is_checked in story:
            before = lab.versions()
            lab.do(change)
            await lab.read(lab.changed_since(before) if kinds == CHANGED else kinds)
            if is_checked:
                lab.check()
        await lab.read(last)
        lab.check()

    asyncio.run(run())


# --- stories that are easily missed ----------------------------------------------------------------------------------

ONE_BOOKING: tuple[tuple[Any, ...], ...] = (("book", "b0", "ada", frozenset(), "", 1, 1, -10, 20),)
P0_WAITS: tuple[Any, ...] = ("pod", "p0", "ada", "one", "", "")
P0_HOLDS: tuple[tuple[Any, ...], ...] = (
    P0_WAITS,
    ("lease", "n1", 0, frozenset({"p0"}), None, ""),
    ("bound", "p0", "n1"),
)
ALL_OTHERS_HELD: tuple[tuple[Any, ...], ...] = tuple(
    step
    for number, (node, index) in enumerate([("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)])
    for step in (
        ("pod", f"other-{number}", "", "one", "", ""),
        ("annotated", f"other-{number}", "carrel.dev/tier", "newer"),
        ("lease", node, index, frozenset({f"other-{number}"}), None, ""),
        ("bound", f"other-{number}", node),
    )
)
"""By pods that nobody may revoke."""


@pytest.mark.parametrize(
    ("before", "change", "expected"),
    [
        pytest.param(
            [("pod", "p0", "ada", "claim", "", "")], ("claim", 1), (False, True), id="a claim comes after its pod"
        ),
        pytest.param(P0_HOLDS, ("annotated", "p0", "carrel.dev/user", "bob"), (True, False), id="another person's"),
        pytest.param([P0_WAITS], ("time passes", 20), (True, False), id="the booking ends"),
        pytest.param(
            [P0_WAITS, ("book", "b0", "ada", frozenset(), "", 1, 1, 5, 20)],
            ("time passes", 5),
            (False, True),
            id="the booking starts",
        ),
        pytest.param([P0_WAITS], ("cancel", "b0"), (True, False), id="the booking is cancelled"),
        pytest.param(
            P0_HOLDS, ("book", "b0", "ada", frozenset(), A100, 1, 1, -10, 20), (True, False), id="another model"
        ),
        pytest.param(
            [*P0_HOLDS, ("book", "b0", "ada", frozenset(), A100, 1, 1, -10, 20)],
            ("reports", "n1", A100),
            (False, True),
            id="the node reports another model",
        ),
        pytest.param(P0_HOLDS, ("exempt", "true"), (True, False), id="the namespace is exempted"),
        pytest.param(
            [("pod", "p0", "ada", "one", "n1", ""), ("labelled", "n1", "elsewhere")],
            ("labelled", "n1", "n1"),
            (False, True),
            id="a node gets the label that the pod selects",
        ),
        pytest.param(
            [*ALL_OTHERS_HELD, P0_WAITS],
            ("annotated", "other-2", "carrel.dev/tier", "opportunistic"),
            (False, True),
            id="a pod of nobody becomes revocable",
        ),
        pytest.param([*ALL_OTHERS_HELD, P0_WAITS], ("ending", "other-2"), (False, True), id="a pod of nobody ends"),
        pytest.param(
            [*ALL_OTHERS_HELD, P0_WAITS],
            ("no lease", "n2", 1),
            (False, True),
            id="a Lease is deleted: its node takes no pods until it is written again; a pod waits as booked",
        ),
        pytest.param(
            [P0_WAITS, ("lost", "n1"), ("lost", "n2")], ("reports", "n2", A6000), (False, True), id="a node is back"
        ),
    ],
)
async def test_an_answer_follows_the_change(
    before: Sequence[tuple[Any, ...]], change: tuple[Any, ...], expected: tuple[bool, bool]
) -> None:
    lab = Story()
    for step in (*ONE_BOOKING, *before):
        lab.do(step)
    await lab.read(KINDS)
    assert (lab.state.covered_pods.of(PodUid(lab.uid("p0"))) is not None) == expected[0]
    lab.do(change)
    await lab.read(KINDS)
    assert (lab.state.covered_pods.of(PodUid(lab.uid("p0"))) is not None) == expected[1]
    lab.check()


@pytest.mark.parametrize("user", PEOPLE)
async def test_a_pod_that_moves_to_another_person_with_a_booking_is_covered_by_that_one(user: str) -> None:
    """In whichever order the two are looked at."""
    lab = Story()
    other = next(each for each in PEOPLE if each != user)
    steps = [("book", "b1", "bob", frozenset(), "", 1, 1, -10, 20), *P0_HOLDS]
    for step in (*ONE_BOOKING, *steps, ("annotated", "p0", "carrel.dev/user", user)):
        lab.do(step)
    await lab.read(KINDS)
    lab.check()
    lab.do(("annotated", "p0", "carrel.dev/user", other))
    await lab.read(KINDS)
    lab.check()
    covered = lab.state.covered_pods.of(PodUid(lab.uid("p0")))
    assert covered is not None and other in covered.entitlement.people


async def test_a_pod_that_is_gone_counts_for_the_booking_on_its_lease_whoever_it_was_written_for() -> None:
    lab = Story()
    holds = [("lease", "n1", 0, frozenset({"p0"}), None, "b0"), ("bound", "p0", "n1")]
    for step in (*ONE_BOOKING, P0_WAITS, *holds, ("annotated", "p0", "carrel.dev/user", "bob")):
        lab.do(step)
    await lab.read(KINDS)
    lab.check()
    lab.do(("gone", "p0"))
    await lab.read(KINDS)
    lab.check()
    use = lab.state.covered_pods.use_of(BookingId("b0"))
    assert use is not None and use.count == 1, "its GPU is still held"


async def test_inside_a_what_if_the_answers_are_those_from_before_it() -> None:
    lab = Story()
    for step in (*ONE_BOOKING, *P0_HOLDS, ("pod", "p1", "ada", "one", "", "")):
        lab.do(step)
    await lab.read(KINDS)
    before = lab.answers(lab.state.covered_pods)["of"]
    lab.state.covered_pods.on_shares([PodUid(lab.uid("p0"))])  # something is to be worked out again
    with lab.state.ledger.what_if():
        lab.state.ledger.forget(PodUid(lab.uid("p0")))
        inside = {uid: lab.state.covered_pods.of(uid) for uid in before}
    assert inside == before
    lab.check()


async def test_two_records_for_the_last_gpu_of_a_booking_cover_one_pod() -> None:
    """Two replicas with old caches have each recorded a pod for the last GPU."""
    lab = Story()
    shares = [("lease", "n1", index, frozenset({f"p{index}"}), None, "b0") for index in GPUS]
    for step in (*ONE_BOOKING, P0_WAITS, ("pod", "p1", "ada", "one", "", ""), *shares):
        lab.do(step)
    await lab.read(KINDS)
    use = lab.state.covered_pods.use_of(BookingId("b0"))
    assert use is not None and use.count == 1, "the function covers one of them"


async def test_what_a_pod_that_is_gone_uses_of_its_booking_follows_the_report_of_its_node() -> None:
    lab = Story()
    for step in (*ONE_BOOKING, ("lease", "n2", 0, frozenset({"p0"}), None, "b0")):
        lab.do(step)
    await lab.read(KINDS)
    lab.check()
    lab.do(("lost", "n2"))
    await lab.read(KINDS)
    lab.check()
