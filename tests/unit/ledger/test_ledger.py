"""Who holds what, through everything that happens to pods, GPUs and nodes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from carrel.ids import GpuUuid, NodeName, PodUid
from carrel.ledger import ledger as module
from carrel.ledger.gpus import Node
from carrel.ledger.ledger import GpuEntry, Ledger, LedgerError, room_on
from carrel.ledger.node_room import NodeRoom
from carrel.ledger.shares import LIFE, Share, ShareEvent, ShareState
from tests.kit.gpus import N1, N2, a_gpu, a_ledger, a_node, held, holder


def free(ledger: Ledger, node: str = "n1") -> list[int]:
    return [entry.free for entry in ledger.entries(NodeName(node))]


def test_a_held_share_is_no_longer_free_and_a_forgotten_one_is() -> None:
    ledger = a_ledger(a_node("n1"))

    ledger.hold(held("a", "n1", 0, 8138))
    assert free(ledger) == [8138, 16276]
    assert ledger.rooms[N1].pieces == (16276, 8138)

    ledger.forget(PodUid("uid-a"))
    assert free(ledger) == [16276, 16276]
    assert list(ledger.holders()) == []
    ledger.audit()


def test_a_terminating_pod_still_holds_its_gpu() -> None:
    ledger = a_ledger(a_node("n1", gpus=1))
    ledger.hold(held("a", "n1", 0, None))
    ledger.assign(PodUid("uid-a"))
    ledger.release(PodUid("uid-a"))

    entry = ledger.entries(N1)[0]
    assert entry.free == 0
    assert {share.state for share in entry.shares.values()} == {ShareState.RELEASING}


@pytest.mark.parametrize(
    ("second", "why"),
    [
        pytest.param(held("b", "n1", 0, 8139), "8138 MiB are free", id="more than is left"),
        pytest.param(held("b", "n1", 0, None), "8138 MiB are free", id="the whole of a GPU that is shared"),
        pytest.param(held("a", "n1", 0, 10), "already", id="a second share of the same GPU"),
        pytest.param(held("b", "n1", 7, 10), "no node reports this GPU", id="a GPU that does not exist"),
        pytest.param(held("b", "n1", 0, 0), "cannot hold 0 MiB", id="nothing"),
        pytest.param(held("b", "n1", 0, -5), "cannot hold -5 MiB", id="less than nothing"),
        pytest.param(held("b", "n1", 1, 10), "kept for lab/booked", id="a GPU that is kept for another"),
        pytest.param(
            replace(held("b", "n1", 0, 10), state=ShareState.GONE), "a share that is gone", id="a share that is gone"
        ),
    ],
)
def test_the_ledger_refuses_to_promise_a_gpu_twice(second: Share, why: str) -> None:
    ledger = a_ledger(a_node("n1"))
    ledger.hold(held("a", "n1", 0, 8138))
    ledger.keep(GpuUuid("GPU-n1-1"), holder("booked"))

    with pytest.raises(LedgerError, match=why):
        ledger.hold(second)

    assert free(ledger) == [8138, 16276]
    ledger.audit()


def test_a_whole_gpu_excludes_all_others() -> None:
    ledger = a_ledger(a_node("n1", gpus=1))
    ledger.hold(held("a", "n1", 0, None))

    with pytest.raises(LedgerError):
        ledger.hold(held("b", "n1", 0, 1))


def test_after_a_restart_the_book_is_the_same() -> None:
    nodes = [a_node("n1"), a_node("n2")]
    before = Ledger(nodes)
    before.hold(held("a", "n1", 0, 8138))
    before.hold(held("b", "n2", 1, None))
    before.release(PodUid("uid-b"))
    shares = [share for uid in before.holders() for share in before.shares_of(uid).values()]

    after = Ledger(nodes, shares)

    assert after.rooms == before.rooms
    assert {uid: dict(after.shares_of(uid)) for uid in after.holders()} == {
        uid: dict(before.shares_of(uid)) for uid in before.holders()
    }


def test_what_the_lease_of_a_gpu_tells_replaces_what_was_known_of_the_gpu() -> None:
    ledger = a_ledger(a_node("n1"))
    ledger.hold(held("stays", "n1", 0, 1000))
    ledger.hold(held("goes", "n1", 0, 1000))
    ledger.hold(held("goes", "n1", 1, 1000))

    ledger.set_entry(
        GpuUuid("GPU-n1-0"), [held("stays", "n1", 0, 1000), held("comes", "n1", 0, 2000)], holder("booked")
    )

    assert free(ledger) == [13276, 15276]
    assert set(ledger.shares_of(PodUid("uid-goes"))) == {"GPU-n1-1"}
    assert ledger.kept_for(PodUid("uid-booked")) == {"GPU-n1-0"}

    ledger.set_entry(GpuUuid("GPU-n1-0"), [])
    assert free(ledger) == [16276, 15276]
    assert ledger.kept_for(PodUid("uid-booked")) == frozenset()
    ledger.audit()


def test_shares_are_known_before_their_node_reports_its_gpus() -> None:
    ledger = Ledger(shares=[held("a", "n1", 0, 8138)])
    assert ledger.entry(GpuUuid("GPU-n1-0")) is None

    ledger.set_node(a_node("n1"))

    assert free(ledger) == [8138, 16276]
    ledger.audit()


def test_a_node_that_goes_and_comes_back_still_has_its_pods() -> None:
    ledger = a_ledger(a_node("n1"))
    ledger.hold(held("a", "n1", 0, 8138))
    ledger.keep(GpuUuid("GPU-n1-1"), holder("booked"))

    ledger.remove_node(N1)
    assert ledger.nodes == ()
    assert set(ledger.shares_of(PodUid("uid-a"))) == {"GPU-n1-0"}

    ledger.set_node(a_node("n1"))
    assert free(ledger) == [8138, 16276]
    assert ledger.kept_for(PodUid("uid-booked")) == {"GPU-n1-1"}
    ledger.audit()


def test_a_pod_that_leaves_while_its_node_is_gone_leaves_nothing_behind() -> None:
    ledger = a_ledger(a_node("n1"))
    ledger.hold(held("a", "n1", 0, None))
    ledger.remove_node(N1)
    ledger.forget(PodUid("uid-a"))

    ledger.set_node(a_node("n1"))

    assert free(ledger) == [16276, 16276]
    ledger.audit()


def test_shares_follow_the_uuid_when_indices_change_after_a_reboot() -> None:
    ledger = a_ledger(a_node("n1"))
    ledger.hold(held("a", "n1", 0, 8138))
    first, second = a_node("n1").gpus

    ledger.set_node(Node(N1, (replace(first, index=1), replace(second, index=0))))

    assert [(entry.gpu.uuid, entry.free) for entry in ledger.entries(N1)] == [("GPU-n1-1", 16276), ("GPU-n1-0", 8138)]
    ledger.audit()


def test_a_gpu_that_is_moved_to_another_machine_is_there_and_no_longer_here() -> None:
    ledger = a_ledger(a_node("n1"))
    ledger.hold(held("a", "n1", 0, 8138))
    moved = replace(a_gpu("n1", 0), node=N2)

    ledger.set_node(Node(N2, (moved,)))

    assert free(ledger, "n2") == [8138]
    assert [entry.gpu.uuid for entry in ledger.entries(N1)] == ["GPU-n1-1"]
    assert [entry.gpu.uuid for entry in ledger.entries(N2)] == ["GPU-n1-0"]
    assert ledger.rooms[N1].whole == 1
    ledger.audit()


def test_a_lost_gpu_takes_its_shares_out_of_the_room_but_not_out_of_the_book() -> None:
    ledger = a_ledger(a_node("n1"))
    ledger.hold(held("a", "n1", 0, 8138))

    ledger.set_node(Node(N1, (a_gpu("n1", 1),)))

    assert free(ledger) == [16276]
    assert set(ledger.shares_of(PodUid("uid-a"))) == {"GPU-n1-0"}
    ledger.audit()


def test_a_gpu_that_reports_less_memory_than_is_held_gives_nothing_away() -> None:
    ledger = a_ledger(a_node("n1", gpus=1))
    ledger.hold(held("a", "n1", 0, 16000))

    ledger.set_node(a_node("n1", gpus=1, memory=15000))

    assert free(ledger) == [-1000]
    with pytest.raises(LedgerError):
        ledger.hold(held("b", "n1", 0, 1))


def test_an_unhealthy_gpu_keeps_its_pods_and_takes_no_new_ones() -> None:
    ledger = a_ledger(a_node("n1", gpus=1))
    ledger.hold(held("a", "n1", 0, 8138))

    ledger.set_node(Node(N1, (a_gpu("n1", 0, unusable="unhealthy: XID 79"),)))
    assert not ledger.rooms[N1].pieces
    assert "uid-a" in ledger.entries(N1)[0].shares

    ledger.set_node(a_node("n1", gpus=1))
    assert ledger.rooms[N1].pieces == (8138,)


def test_one_gpu_reported_twice_is_refused_and_changes_nothing() -> None:
    ledger = a_ledger(a_node("n1"))

    with pytest.raises(LedgerError, match="more than once"):
        ledger.set_node(Node(N1, (a_gpu("n1", 0), replace(a_gpu("n1", 0), index=1))))

    assert free(ledger) == [16276, 16276]


def test_a_share_that_is_gone_cannot_be_restored() -> None:
    with pytest.raises(LedgerError, match="gone"):
        Ledger(shares=[replace(held("a", "n1", 0, 1), state=ShareState.GONE)])


def test_a_kept_gpu_is_kept_until_the_pod_is_gone_or_says_so() -> None:
    ledger = a_ledger(a_node("n1"))
    ledger.keep(GpuUuid("GPU-n1-0"), holder("a"))
    ledger.keep(GpuUuid("GPU-n1-0"), holder("a"))

    with pytest.raises(LedgerError, match="kept for lab/a"):
        ledger.keep(GpuUuid("GPU-n1-0"), holder("b"))
    assert ledger.rooms[N1].whole == 1

    ledger.give_back(PodUid("uid-a"))
    assert ledger.kept_for(PodUid("uid-a")) == {"GPU-n1-0"}
    ledger.forget(PodUid("uid-a"))
    assert ledger.kept_for(PodUid("uid-a")) == frozenset()
    assert ledger.rooms[N1].whole == 2


def test_what_if_leaves_no_trace_even_when_it_fails() -> None:
    ledger = a_ledger(a_node("n1"))
    ledger.hold(held("a", "n1", 0, 8138))
    ledger.keep(GpuUuid("GPU-n1-1"), holder("booked"))
    rooms = dict(ledger.rooms)

    with pytest.raises(ZeroDivisionError), ledger.what_if():
        ledger.forget(PodUid("uid-a"))
        ledger.hold(held("b", "n1", 0, None))
        ledger.keep_no_more(PodUid("uid-booked"))
        with ledger.what_if():
            ledger.forget(PodUid("uid-b"))
            ledger.restore([held("c", "n9", 0, 5)])
        assert set(ledger.holders()) == {"uid-b"}
        ledger.hold(held("d", "n1", 1, 5))
        raise ZeroDivisionError

    assert dict(ledger.rooms) == rooms
    assert set(ledger.holders()) == {"uid-a"}
    assert ledger.kept_for(PodUid("uid-booked")) == {"GPU-n1-1"}
    ledger.audit()


def test_the_inventory_cannot_change_inside_a_what_if() -> None:
    ledger = a_ledger(a_node("n1"))
    with ledger.what_if():
        with pytest.raises(LedgerError, match="what-if"):
            ledger.set_node(a_node("n2"))
        with pytest.raises(LedgerError, match="what-if"):
            ledger.remove_node(N1)


def _miscount(ledger: Ledger) -> None:
    ledger.entries(N1)[0].free = 5


def _lose_a_share_of_the_gpu(ledger: Ledger) -> None:
    entry = ledger.entries(N1)[0]
    entry.shares.clear()
    entry.free = entry.gpu.memory


def _forget_that_a_gpu_is_kept(ledger: Ledger) -> None:
    ledger.entries(N1)[1].kept_for = None


@pytest.mark.parametrize(
    ("tamper", "complaint"),
    [
        (_miscount, "shows 5 MiB free, its shares leave 8138"),
        (_lose_a_share_of_the_gpu, "the GPUs know"),
        (_forget_that_a_gpu_is_kept, "node n1 shows"),
    ],
)
def test_the_audit_finds_a_book_that_disagrees_with_itself(tamper: Callable[[Ledger], None], complaint: str) -> None:
    ledger = a_ledger(a_node("n1"))
    ledger.hold(held("a", "n1", 0, 8138))
    ledger.keep(GpuUuid("GPU-n1-1"), holder("booked"))
    ledger.audit()

    tamper(ledger)

    with pytest.raises(LedgerError, match=complaint):
        ledger.audit()


def test_the_life_of_a_share_has_an_answer_to_every_event_until_it_is_gone() -> None:
    living = [state for state in ShareState if state is not ShareState.GONE]

    assert set(LIFE) == {(state, event) for state in living for event in ShareEvent}
    assert all(LIFE[state, ShareEvent.LEAVE] is ShareState.GONE for state in living)


def test_a_node_is_summed_up_once_for_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = a_ledger(a_node("n1"), a_node("n2"))
    assert list(ledger.rooms) == ["n1", "n2"]
    summed_up: list[str] = []

    def note(entries: Sequence[GpuEntry]) -> NodeRoom:
        summed_up.append(entries[0].gpu.node)
        return room_on(entries)

    monkeypatch.setattr(module, "room_on", note)

    ledger.hold(held("a", "n1", 0, 8138))
    ledger.hold(held("b", "n1", 1, 1000))

    assert ledger.rooms[N1].pieces == (15276, 8138)
    assert ledger.rooms[N1] is ledger.rooms[N1]
    assert summed_up == ["n1"]


def test_a_node_that_has_changed_and_is_gone_has_no_room() -> None:
    ledger = a_ledger(a_node("n1"), a_node("n2"))
    ledger.hold(held("a", "n1", 0, 8138))
    ledger.remove_node(N1)
    assert list(ledger.rooms) == ["n2"]
    ledger.audit()


def test_what_was_taken_before_a_share_that_is_refused_is_held() -> None:
    ledger = a_ledger(a_node("n1"))
    with pytest.raises(LedgerError, match="cannot hold"):
        ledger.hold(held("a", "n1", 0, 8138), held("b", "n1", 0, 99999))
    assert ledger.rooms[N1].pieces == (16276, 8138)
    ledger.audit()


def test_every_state_has_a_version_and_after_a_what_if_it_is_the_one_from_before() -> None:
    ledger = a_ledger(a_node("n1"), a_node("n2"))
    versions = [ledger.version]
    with ledger.what_if():
        ledger.hold(held("a", "n1", 0, 8138))
        versions.append(ledger.version)
        with ledger.what_if():
            ledger.hold(held("b", "n2", 0, 8138))
            versions.append(ledger.version)
        assert ledger.version == versions[1]
    assert ledger.version == versions[0]
    assert ledger.changed_since(versions[0]) == ()
    assert set(ledger.changed_since(versions[1]) or ()) == {"n1", "n2"}, "who remembers what was tried looks again"

    ledger.hold(held("c", "n2", 0, 8138))
    versions.append(ledger.version)

    assert len(set(versions)) == len(versions)
    assert "n2" in (ledger.changed_since(versions[0]) or ())
    assert ledger.changed_since(versions[3]) == ()


def test_when_a_node_is_gone_all_must_be_looked_at_again() -> None:
    ledger = a_ledger(a_node("n1"), a_node("n2"))
    before = ledger.version
    ledger.remove_node(N1)
    assert ledger.version != before
    assert ledger.changed_since(before) is None
    assert ledger.changed_since(ledger.version) == ()
    ledger.remove_node(N1)
    assert ledger.changed_since(ledger.version) == ()


def test_an_event_that_says_what_is_known_is_no_change() -> None:
    ledger = a_ledger(a_node("n1"))
    ledger.hold(held("a", "n1", 0, 8138))
    ledger.assign(PodUid("uid-a"))
    before = ledger.version
    ledger.assign(PodUid("uid-a"))
    assert ledger.version == before
