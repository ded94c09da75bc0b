"""Which container a call of the kubelet is for, which does not say it."""

from hypothesis import given
from hypothesis import strategies as st

from carrel.ids import GpuUuid, PodUid
from carrel.ledger.shares import Holder
from carrel.node.allocation import WaitingContainer, candidates_in_order


def waiting(pod: str, amount: int = 8138, gpu: str = "GPU-0", since: int = 1, **more: object) -> WaitingContainer:
    fields: dict[str, object] = {"container": "main", "position": 0, "is_answered": False, **more}
    return WaitingContainer(holder=Holder(pod, "lab", pod), amount=amount, gpus=(gpu,), since_ns=since, **fields)  # type: ignore[arg-type] # passed through


def names(turns: list[WaitingContainer]) -> list[str]:
    return [each.holder.uid for each in turns]


def test_only_containers_that_need_exactly_so_many_devices_are_candidates() -> None:
    assert names(candidates_in_order([waiting("a", 8137), waiting("b", 8138), waiting("c", 8139)], 8138)) == ["b"]


def test_among_equals_the_oldest_promise_comes_first() -> None:
    assert names(candidates_in_order([waiting("late", since=2), waiting("early", since=1)], 8138)) == ["early", "late"]


def test_the_container_of_that_gpu_comes_before_an_older_one() -> None:
    pods = [waiting("old", gpu="GPU-0", since=1), waiting("young", gpu="GPU-1", since=2)]
    assert names(candidates_in_order(pods, 8138, {GpuUuid("GPU-1")})) == ["young", "old"]


def test_a_container_that_was_answered_comes_last_but_stays_a_candidate() -> None:
    pods = [waiting("served", since=1, is_answered=True), waiting("not-yet", since=2)]
    assert names(candidates_in_order(pods, 8138)) == ["not-yet", "served"]
    assert names(candidates_in_order(pods[:1], 8138)) == ["served"]


def test_containers_of_a_pod_come_in_their_order() -> None:
    first, second = waiting("pod", container="a", position=0), waiting("pod", container="b", position=1)
    assert [each.container for each in candidates_in_order([second, first], 8138)] == ["a", "b"]


WAITING = st.builds(
    WaitingContainer,
    holder=st.sampled_from("abcd").map(lambda name: Holder(PodUid(name), "lab", name)),
    container=st.sampled_from(["main", "side"]),
    position=st.integers(0, 3),
    amount=st.integers(1, 3),
    gpus=st.sampled_from(["GPU-0", "GPU-1"]).map(lambda gpu: (gpu,)),
    since_ns=st.integers(0, 3),
    is_answered=st.booleans(),
)


@given(st.permutations(range(6)), st.lists(WAITING, min_size=6, max_size=6), st.integers(1, 3))
def test_the_order_does_not_depend_on_how_pods_are_listed(
    order: list[int], pods: list[WaitingContainer], amount: int
) -> None:
    def seen(turns: list[WaitingContainer]) -> list[tuple[object, ...]]:
        return [(each.is_answered, each.since_ns, each.holder.uid, each.position) for each in turns]

    assert seen(candidates_in_order(pods, amount)) == seen(candidates_in_order([pods[i] for i in order], amount))


@given(st.lists(WAITING), st.integers(1, 3), st.sets(st.sampled_from(["GPU-0", "GPU-1"])))
def test_every_fitting_container_is_a_candidate_and_no_other_is(
    pods: list[WaitingContainer], amount: int, gpus: set[GpuUuid]
) -> None:
    turns = candidates_in_order(pods, amount, gpus)
    assert len(turns) == sum(each.amount == amount for each in pods)
    assert all(each.amount == amount for each in turns)
    if any(not each.is_answered for each in turns):
        assert not turns[0].is_answered


@given(st.lists(WAITING, min_size=1))
def test_serving_the_first_candidate_each_time_serves_every_container_once(pods: list[WaitingContainer]) -> None:
    """The kubelet calls once for each container: each is served, whatever the order of promises."""
    unserved = {
        (each.holder.uid, each.container, each.position): each
        for each in (WaitingContainer(e.holder, e.container, e.position, 1, e.gpus, e.since_ns) for e in pods)
    }
    served: list[tuple[str, str, int]] = []
    while len(served) < len(unserved):
        now = [
            WaitingContainer(e.holder, e.container, e.position, 1, e.gpus, e.since_ns, is_answered=key in served)
            for key, e in unserved.items()
        ]
        first = candidates_in_order(now, 1)[0]
        served.append((first.holder.uid, first.container, first.position))
    assert sorted(served) == sorted(unserved)
