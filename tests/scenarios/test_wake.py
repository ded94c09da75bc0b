"""A pod that has room and is not placed is woken at once, then less and less often, and never in a loop."""

from carrel.cluster.waiting.wake import WakeLimiter
from carrel.ids import PodUid


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_pod_is_woken_at_once_then_less_and_less_often() -> None:
    clock = Seconds()
    knocks = WakeLimiter(clock)
    woken = []
    for second in range(1200):
        clock.now = 100.0 + second
        if knocks.is_due(PodUid("a")):
            woken.append(second)

    assert woken == [0, 15, 45, 105, 225, 465, 705, 945, 1185]


def test_the_change_by_a_wake_does_not_wake_the_pod_again() -> None:
    knocks = WakeLimiter(Seconds())

    assert [knocks.is_due(PodUid("a")) for _ in range(3)] == [True, False, False]
    assert knocks.is_due(PodUid("b")), "others are woken in their own time"


def test_after_a_change_for_a_pod_it_is_woken_at_once_again() -> None:
    knocks = WakeLimiter(Seconds())
    knocks.is_due(PodUid("a"))

    knocks.forget(PodUid("a"))

    assert knocks.is_due(PodUid("a"))
