"""The manifest that people see after booking asks for what they have booked."""

from fractions import Fraction

import msgspec
import pytest
import yaml

from carrel.dialects import carrel, gpuclaim, gpushare, hami, kai, nvidia
from carrel.dialects.example_pod import BookedGpus, example_pod
from carrel.dialects.interface import Dialect, PodRequest
from carrel.dialects.options import DialectOptions, Unit
from carrel.dialects.registry import request_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.gpus import MiB
from carrel.ledger.requests import WHOLE, Amount, Memory, Portion, Request

A100 = "NVIDIA-A100-SXM4-80GB"
QUARTER = Memory(MiB(20480))


def asked(booked: BookedGpus, dialect: Dialect | None, unit: Unit = Unit.MIB) -> tuple[Pod, PodRequest]:
    pod = msgspec.convert(yaml.safe_load(example_pod(booked, "lab", dialect, unit)), Pod)
    found = request_of(pod, lambda namespace, name: None, dialect_options=DialectOptions(memory_unit=unit))
    assert isinstance(found, PodRequest)
    return pod, found


@pytest.mark.parametrize("dialect", [None, nvidia.DIALECT, gpushare.DIALECT, gpuclaim.DIALECT, kai.DIALECT])
def test_whole_gpus_are_asked_for_by_number_and_model(dialect: Dialect | None) -> None:
    pod, found = asked(BookedGpus(A100, gpus=2), dialect)

    assert (pod.metadata.namespace, found.request) == ("lab", Request(2, WHOLE, A100))


@pytest.mark.parametrize(
    ("dialect", "amount"),
    [
        (None, QUARTER),
        (nvidia.DIALECT, QUARTER),
        (carrel.DIALECT, QUARTER),
        (gpushare.DIALECT, QUARTER),
        (kai.DIALECT, Portion(Fraction(1, 4))),
    ],
)
def test_a_share_is_asked_for_in_the_words_of_the_persons_other_pods(dialect: Dialect | None, amount: Amount) -> None:
    _, found = asked(BookedGpus(A100, share_of=4, memory_mib=81920), dialect)

    assert (found.request.gpus, found.request.amount, found.request.model) == (1, amount, A100)
    assert dialect in (None, nvidia.DIALECT, found.dialect)


def test_memory_is_in_the_unit_of_the_cluster() -> None:
    _, found = asked(BookedGpus(A100, share_of=4, memory_mib=81920), gpushare.DIALECT, Unit.GIB)

    assert found.request.amount == QUARTER


def test_a_share_for_hami_is_a_limit_of_memory() -> None:
    _, found = asked(BookedGpus(A100, share_of=4, memory_mib=81920), hami.DIALECT)

    assert found.dialect is hami.DIALECT


def test_a_pod_for_a_booking_that_starts_later_names_it() -> None:
    pod, _ = asked(BookedGpus(A100, booking="0f3c"), None)

    assert pod.metadata.annotations["carrel.dev/booking"] == "0f3c"
