"""Foreign words that no reader or writer spells out: a typo in one would be found only on a real cluster."""

import pytest

from carrel.dialects import gpushare, nvidia
from carrel.dialects.gpuclaim import ClaimPhase
from carrel.dialects.options import SCHEDULER
from carrel.dialects.registry import DIALECTS


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (gpushare.GPU_COUNT, "aliyun.com/gpu-count"),
        (gpushare.NODE_LABEL, "gpushare"),
        (gpushare.CONTAINER_UNITS, "ALIYUN_COM_GPU_MEM_CONTAINER"),
        (gpushare.NO_ROOM, "Insufficient GPU Memory in one device"),
        (gpushare.UNHEALTHY_NAMESPACE, "kube-system"),
        (gpushare.UNHEALTHY_PREFIX, "unhealthy-gpu-"),
        (SCHEDULER, "gpu-scheduler"),
        (nvidia.CUDA_VISIBLE_DEVICES, "CUDA_VISIBLE_DEVICES"),
        (nvidia.NO_DEVICE, "none"),
        (nvidia.NO_RUNTIME, "void"),
    ],
)
def test_a_word_is_spelled_as_the_peers_spell_it(ours: str, theirs: str) -> None:
    assert ours == theirs


def test_the_phases_of_a_claim() -> None:
    theirs = [phase.value for phase in ClaimPhase if phase is not ClaimPhase.RELEASED]
    assert (theirs, ClaimPhase.RELEASED.value) == (["Pending", "Reserved", "Bound", "Failed"], "Released")


def test_a_dialect_is_named_by_the_words_a_user_wrote() -> None:
    assert [dialect.words for dialect in DIALECTS] == [
        "nvidia.com/gpu",
        "nvidia.com/mig-<profile>",
        "aliyun.com/gpu-mem",
        "gpu.scheduling/claim",
        "gpu-fraction or gpu-memory",
        "carrel.dev/gpu-count or carrel.dev/gpu-memory-mib",
        "nvidia.com/gpumem, nvidia.com/gpumem-percentage, nvidia.com/gpucores or another word of HAMi",
    ]
