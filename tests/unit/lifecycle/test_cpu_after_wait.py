"""Which pods go on waiting for a GPU, however long, and which go on without one after a while."""

from dataclasses import replace

import pytest

from carrel.lifecycle.handing_over.cpu_after_wait import WaitingGpuPod, why_it_waits

NOTEBOOK = WaitingGpuPod(runs_on_cpu_when_full=True, is_opportunistic=True)


def test_a_notebook_without_a_booking_goes_on_without_a_gpu() -> None:
    assert why_it_waits(NOTEBOOK) == ""


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        ({"runs_on_cpu_when_full": False}, "a full cluster means waiting for it"),
        ({"is_opportunistic": False}, "it is no opportunistic pod"),
        ({"is_in_gang": True}, "it is a member of a gang"),
        ({"is_for_booking": True}, "it is made for a booking"),
        ({"is_covered_soon": True}, "a booking of its person starts soon"),
        ({"has_gates": True}, "scheduling gates hold it back"),
        ({"has_controller": True}, "its controller would replace it"),
        ({"has_promise": True}, "it is being bound"),
    ],
)
def test_a_pod_goes_on_waiting_if(fact: dict[str, bool], why: str) -> None:
    assert why_it_waits(replace(NOTEBOOK, **fact)) == why
