"""What is written is read back as it was, in every dialect."""

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carrel.admission import review
from carrel.dialects import gpu_lease, gpuclaim, gpushare, jupyter, kai, maia, visible_devices
from carrel.dialects.gpu_lease import read_shares
from carrel.dialects.tier import Revocable, TerminateAt, read_terminate_at, write_terminate_at
from carrel.ids import BookingId, GpuUuid, NodeName, PodUid
from carrel.kubernetes.objects.quantity import quantity
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.shares import Coverage, Holder, HolderKind, Share, ShareState
from carrel.parsing import Malformed
from carrel.parsing.time import instant, micro_seconds, seconds
from kubernetes_in_memory.json_patch import apply
from tests.kit.gpus import N1
from tests.kit.objects import gpu_node_status, lease, pod

COUNTS = st.integers(0, 2**63 - 1)
INDICES = st.integers(0, 9999)
MEMORY = st.integers(1, 2**40).map(MiB)
UIDS = st.uuids().map(str)
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
MOMENTS = st.datetimes(
    min_value=datetime(1901, 1, 2),
    max_value=datetime(9999, 1, 1),
    timezones=st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)


@given(MOMENTS)
def test_instants(moment: datetime) -> None:
    assert instant(micro_seconds(moment), "x", "y") == moment
    assert instant(seconds(moment), "x", "y") == moment.astimezone(UTC).replace(microsecond=0)
    assert instant(moment.isoformat(), "x", "y") == moment


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_whole_quantities(number: int) -> None:
    assert quantity(str(number), "x", "y") == number


@given(st.integers(0, 10**6), st.integers(0, 9), st.sampled_from([("", 1), ("k", 10**3), ("Ki", 2**10), ("Gi", 2**30)]))
def test_quantities_with_a_point_and_a_suffix(number: int, places: int, suffix: tuple[str, int]) -> None:
    text = f"{number // 10**places}.{number % 10**places:0{max(places, 1)}d}" if places else str(number)
    exact = Fraction(number, 10**places) * suffix[1]
    assert 0 <= quantity(text + suffix[0], "x", "y") - exact < Fraction(1, 10**9)


@given(st.text().filter(str.isprintable))
def test_names_of_notebook_users(name: str) -> None:
    label = jupyter.escape(name)
    assert jupyter.username_of(pod(labels={"hub.jupyter.org/username": label})) == name


@given(st.lists(st.text(max_size=6).filter(str.isprintable), unique=True))
def test_two_users_never_share_a_label(names: list[str]) -> None:
    assert len({jupyter.escape(name) for name in names}) == len(names)


@given(st.builds(gpushare.Assumption, COUNTS, COUNTS, COUNTS, st.booleans(), COUNTS))
def test_gpushare_assumptions(assumption: gpushare.Assumption) -> None:
    assert gpushare.read_assumption(pod(gpushare.write_assumption(assumption))) == assumption


@given(st.lists(INDICES, min_size=1))
def test_claim_allocations(ids: list[int]) -> None:
    indices = ",".join(map(str, ids))
    assert gpuclaim.write_allocated(NodeName("node-a"), ids) == {"gpu.scheduling/allocated": f"node-a:{indices}"}
    assert gpuclaim.claim_status(gpuclaim.ClaimPhase.BOUND, NodeName("node-a"), ids)["allocated"] == f"node-a:{indices}"


@given(NAMES, INDICES)
def test_names_of_leases(node: str, index: int) -> None:
    assert gpu_lease.read_lease_name(gpu_lease.lease_name(NodeName(node), index)) == (node, index)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    name = draw(NAMES)
    gpus = draw(st.lists(st.tuples(UIDS, NAMES, MEMORY, NAMES, st.integers(0, 900), st.sampled_from(["", "XID 79"]))))
    return Node(
        NodeName(name),
        tuple(
            Gpu(GpuUuid(f"GPU-{uuid}{i}"), NodeName(name), i, model, memory, island, bandwidth, unusable)
            for i, (uuid, model, memory, island, bandwidth, unusable) in enumerate(gpus)
        ),
    )


@given(nodes(), MOMENTS)
def test_node_statuses(node: Node, heartbeat: datetime) -> None:
    status = gpu_node_status(gpuclaim.node_status(node, {}, heartbeat))
    assert gpuclaim.node_of(status, {}) == node
    assert gpuclaim.heartbeat_of(status) == heartbeat.astimezone(UTC).replace(microsecond=0)


@st.composite
def records(draw: st.DrawFn) -> gpu_lease.LeaseRecord:
    gpu = f"GPU-{draw(UIDS)}"
    holders = st.builds(Holder, UIDS, st.text(max_size=8))
    states = st.sampled_from([ShareState.ASSUMED, ShareState.ASSIGNED, ShareState.RELEASING])
    shared = st.lists(st.builds(Share, holders, st.just(gpu), MEMORY, states), unique_by=lambda share: share.holder.uid)
    whole = st.builds(Share, holders, st.just(gpu), st.none(), states).map(lambda share: [share])
    record = gpu_lease.LeaseRecord(NodeName(draw(NAMES)), draw(INDICES), GpuUuid(gpu), tuple(draw(shared | whole)))
    victims = st.lists(holders, unique_by=lambda holder: holder.uid, max_size=3)
    return record.keeping(draw(holders), draw(victims)) if draw(st.booleans()) else record


@given(records(), MOMENTS)
def test_records_of_gpus(record: gpu_lease.LeaseRecord, now: datetime) -> None:
    written = gpu_lease.write_lease(record, "carrel-system", now)
    # Through JSON and back, as the API server does.
    assert gpu_lease.read_lease(lease(json.loads(json.dumps(written)))) == record


@pytest.mark.parametrize(
    "added",
    [
        pytest.param('"uid-2":{"pod":"lab/b","state":"gone","mib":1}', id="a state that is none"),
        pytest.param('"uid-2":{"pod":"lab/b","state":"assumed","mib":1.5}', id="half a MiB"),
        pytest.param('"uid-2":{"pod":"lab/b","state":"assumed","mib":true}', id="true as memory"),
        pytest.param('"uid-2":{"pod":7,"state":"assumed","mib":1}', id="a number as a name"),
        pytest.param('"uid-2":{"pod":"lab/b","state":"assumed","mib":1,"tries":[1]}', id="a number as a mark"),
        pytest.param('"uid-2":7', id="a number as a share"),
        pytest.param('"uid-2"', id="no JSON"),
        pytest.param("", id="nothing"),
    ],
)
def test_one_malformed_share_is_found_beside_others(added: str) -> None:
    first = '"uid-1":{"pod":"lab/a","state":"assumed","mib":1}'
    notes = {"carrel.dev/gpu": "GPU-1", "carrel.dev/shares": f"{{{first},{added}}}"}
    with pytest.raises(Malformed):
        gpu_lease.read_lease(lease({"metadata": {"name": "gpu-n1-0", "annotations": notes}}))


@given(st.lists(UIDS, min_size=1), st.just("") | NAMES)
def test_devices(uuids: list[str], container: str) -> None:
    assert visible_devices.read_devices(
        pod({visible_devices.devices_key(container): ",".join(uuids)}), container
    ) == tuple(uuids)


@given(st.lists(NAMES, min_size=1, unique=True))
def test_gpu_groups(groups: list[str]) -> None:
    assert kai.read_groups(kai.group_labels(groups)) == tuple(groups)


@given(MOMENTS | st.just(Revocable.ANY_TIME))
def test_ends(when: TerminateAt) -> None:
    read = read_terminate_at(pod(write_terminate_at(when)))
    expected = when.astimezone(UTC).replace(microsecond=0) if isinstance(when, datetime) else when
    assert read == expected


WISHES = st.builds(maia.Wish, NAMES, *[MOMENTS.map(lambda moment: moment.astimezone(UTC).replace(microsecond=0))] * 2)


@given(st.builds(maia.Enquiry, NAMES, st.text(), st.text(), st.none() | WISHES))
def test_enquiries(enquiry: maia.Enquiry) -> None:
    assert maia.read_enquiry(maia.write_enquiry(enquiry)) == enquiry


@given(st.booleans(), st.none() | MOMENTS, NAMES)
def test_verdicts(schedulable: bool, until: datetime | None, model: str) -> None:
    moment = until.astimezone(UTC).replace(microsecond=0) if until else None
    verdict = maia.Verdict(schedulable, moment, model if schedulable else "")
    assert maia.read_verdict(maia.write_verdict(verdict)) == verdict


@given(st.text(), st.text(), st.none() | st.dictionaries(st.text(), st.text()))
def test_an_annotation_arrives_through_an_admission_answer(
    key: str, value: str, present: dict[str, str] | None
) -> None:
    document: dict[str, Any] = {"metadata": {"annotations": present}}
    request = review.AdmissionRequest("admission.k8s.io/v1", "u", "Pod", "CREATE", "lab", "", review.RequestUser("a"))
    wanted = {"metadata": {"annotations": {**(present or {}), key: value}}}
    response = review.allowed(request._replace(object=document), wanted)["response"]
    operations = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    assert apply(document, operations)["metadata"]["annotations"][key] == value


ODD_WORDS = st.sampled_from(["pod", "claim", "state", "mib", "tries", "booking", "covered", "assumed", "uid-1", ""])
ODD_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, 1, -1, 2.0, "", "lab/a", "assumed", "gone", [], ["m"], [""], {}]
)
ODD_ENTRIES = ODD_VALUES | st.dictionaries(ODD_WORDS, ODD_VALUES, max_size=4)


@given(st.dictionaries(ODD_WORDS, ODD_ENTRIES, max_size=3) | ODD_VALUES, st.sampled_from([json.dumps, str]))
@example({"uid-1": {"pod": "lab/a", "state": "assumed", "mib": 1, "tries": ["m"]}}, json.dumps)
@example({"uid-1": {"claim": "lab/a", "state": "releasing"}}, json.dumps)
@example({"": {"pod": "lab/a", "state": "assumed"}}, json.dumps)
def test_shares_are_read_whole_or_refused_with_the_annotation(shares: Any, write: Any) -> None:
    try:
        found, tries = read_shares(write(shares), "Lease a", "the shares", GpuUuid("GPU-1"))
    except Malformed as malformed:
        assert str(malformed).startswith("Lease a: the shares") and "; expected " in str(malformed)
    else:
        assert found.keys() == (json.loads(write(shares)) or {}).keys() and tries.keys() <= found.keys()
        assert all(share.gpu == "GPU-1" and share.holder.uid == uid for uid, share in found.items())


def test_what_carrel_writes_for_pods_and_claims_is_read_again() -> None:
    covered = Coverage(BookingId("b-1"), datetime(2026, 11, 17, tzinfo=UTC))
    shares = (
        Share(Holder(PodUid("uid-1"), "lab", "a"), GpuUuid("GPU-1"), MiB(8138)),
        Share(
            Holder(PodUid("uid-2"), "lab", "b", HolderKind.CLAIM),
            GpuUuid("GPU-1"),
            MiB(1),
            ShareState.RELEASING,
            covered,
        ),
    )
    record = gpu_lease.LeaseRecord(N1, 0, GpuUuid("GPU-1"), shares, tries={PodUid("uid-1"): ("mark",)})
    written = gpu_lease.write_lease(record, "carrel", datetime(2026, 11, 17, tzinfo=UTC))
    text = written["metadata"]["annotations"]["carrel.dev/shares"]
    assert read_shares(text, "Lease a", "the shares", GpuUuid("GPU-1")) == (
        {share.holder.uid: share for share in shares},
        {"uid-1": ("mark",)},
    )
