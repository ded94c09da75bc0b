"""Prometheus sees, for each model, what its GPUs are used for, how much memory is held, and how much is booked."""

from datetime import UTC, datetime, timedelta

from carrel.http.metrics import ComponentMetrics
from carrel.ids import BookingId, GpuUuid, PersonId
from carrel.ledger.coverage import Entitlement
from carrel.ledger.gpus import Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.shares import Coverage, Share
from carrel.lifecycle.reporting.gpu_counts import gpu_counts
from tests.kit.gpus import N1, N2, a_gpu, a_node, held, holder

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
COVERED = Coverage(BookingId("b"), NOON)


def counted(ledger: Ledger, *bookings: Entitlement) -> ComponentMetrics:
    metrics = ComponentMetrics()
    metrics.read_on_scrape(lambda: gpu_counts(ledger, bookings))
    return metrics


def lines(metrics: ComponentMetrics) -> dict[str, float]:
    found = [line.rsplit(" ", 1) for line in metrics.text().decode().splitlines() if line.startswith("carrel_gpu")]
    return {name: float(value) for name, value in found}


def test_each_gpu_is_counted_once_by_what_it_is_used_for() -> None:
    gpus = [a_gpu("n1", index, memory=1000, model="A") for index in range(5)]
    broken = a_gpu("n1", 5, memory=1000, model="A", unusable="unhealthy: XID 79")
    ledger = Ledger([Node(N1, (*gpus, broken)), a_node("n2", gpus=1, memory=2000, model="B")])
    ledger.restore(
        [
            Share(holder("a"), GpuUuid("GPU-n1-0"), None, coverage=COVERED),
            held("b", "n1", 1, 400),
            held("c", "n1", 1, 100),
            held("d", "n1", 5, None),
        ]
    )
    ledger.keep(GpuUuid("GPU-n1-2"), holder("e"))
    start, end = NOON, NOON + timedelta(days=1)
    whole = Entitlement(BookingId("b"), frozenset({PersonId("ada")}), "A", 2, start, end)
    quarter = Entitlement(BookingId("c"), frozenset({PersonId("bob")}), "A", 1, start, end, share_of=4)
    anything = Entitlement(BookingId("d"), frozenset({PersonId("cid")}), "", 3, start, end)
    maias = Entitlement(BookingId("maia-e"), frozenset({PersonId("eve")}), "", 8, start, end)
    seen = lines(counted(ledger, whole, quarter, anything, maias))
    assert {key: value for key, value in seen.items() if value} == {
        'carrel_gpus{model="A",state="covered"}': 1,
        'carrel_gpus{model="A",state="opportunistic"}': 1,
        'carrel_gpus{model="A",state="kept"}': 1,
        'carrel_gpus{model="A",state="free"}': 2,
        'carrel_gpus{model="A",state="unusable"}': 1,
        'carrel_gpus{model="B",state="free"}': 1,
        'carrel_gpus_healthy{model="A"}': 5,
        'carrel_gpus_healthy{model="B"}': 1,
        'carrel_gpu_memory_bytes{model="A",state="free"}': 3500 * 2**20,
        'carrel_gpu_memory_bytes{model="A",state="assumed"}': 2500 * 2**20,
        'carrel_gpu_memory_bytes{model="B",state="free"}': 2000 * 2**20,
        'carrel_gpu_fragmentation_ratio{model="A"}': 500 / 2500,
        'carrel_gpus_booked{model="A"}': 2.25,
        'carrel_gpus_booked{model="any"}': 4,  # in MAIA's dashboard one GPU is booked
    }
    assert seen['carrel_gpus_booked{model="B"}'] == 0


def test_the_counts_follow_the_ledger_through_every_change() -> None:
    ledger = Ledger([a_node("n1", model="A"), a_node("n2", gpus=1, model="B")])
    metrics = counted(ledger)
    assert lines(metrics)['carrel_gpus{model="A",state="free"}'] == 2
    ledger.hold(held("a", "n1", 0, 8138))
    ledger.hold(held("b", "n2", 0, None))
    assert lines(metrics) == lines(counted(ledger))
    ledger.set_entry(GpuUuid("GPU-n1-0"), [Share(holder("a"), GpuUuid("GPU-n1-0"), None, coverage=COVERED)])
    assert lines(metrics)['carrel_gpus{model="A",state="covered"}'] == 1, "its booking has started"
    ledger.keep(GpuUuid("GPU-n1-1"), holder("c"))
    ledger.remove_node(N2)
    assert lines(metrics) == lines(counted(ledger))
    assert not any('model="B"' in name for name in lines(metrics)), "no GPU of this model is left"


def test_a_model_that_nobody_reports_is_called_unknown() -> None:
    seen = lines(counted(Ledger([a_node("n1", gpus=1, model="")])))
    assert seen['carrel_gpus{model="unknown",state="free"}'] == 1
