"""An eviction gives no GPU pod longer to end than any GPU pod may take: it keeps its GPU until then."""

from typing import Any

import pytest

from tests.kit.reviews import ReviewedCluster, RunningPod, review

Json = dict[str, Any]
YEAR_S = 31_536_000


def eviction(name: str, options: Any) -> Json:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
    return review(body, kind="Eviction", subresource="eviction")


@pytest.mark.parametrize(
    ("pod", "options", "is_evicted"),
    [
        pytest.param("train", {"gracePeriodSeconds": YEAR_S}, False, id="a year"),
        pytest.param("train", {"gracePeriodSeconds": 301}, False, id="a second too long"),
        pytest.param("train", {"gracePeriodSeconds": 300}, True, id="as long as it may take"),
        pytest.param("train", {"gracePeriodSeconds": 0}, True, id="at once"),
        pytest.param("train", {}, True, id="as its manifest says"),
        pytest.param("train", None, True, id="without options"),
        pytest.param("other", {"gracePeriodSeconds": YEAR_S}, True, id="of a pod without a GPU"),
    ],
)
async def test_a_gpu_pod_is_not_given_longer_to_end(pod: str, options: Any, is_evicted: bool) -> None:
    reviewed = await ReviewedCluster(running=[RunningPod("train")]).ask(eviction(pod, options))

    assert reviewed.allowed is is_evicted and reviewed.patch == []
    if not is_evicted:
        seconds = f"{options['gracePeriodSeconds']:,}"
        assert reviewed.message == (
            f"pod lab/train is not given {seconds} seconds to end, because it keeps its GPU until then; at most 300"
        )


async def test_an_eviction_that_cannot_be_read_is_refused() -> None:
    reviewed = await ReviewedCluster(running=[RunningPod("train")]).ask(eviction("train", {"gracePeriodSeconds": "x"}))

    assert (reviewed.allowed, reviewed.code) == (False, 422)
    assert "deleteOptions.gracePeriodSeconds" in reviewed.message
