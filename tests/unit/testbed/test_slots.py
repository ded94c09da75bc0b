"""Several test beds at once: no port, address or folder is used twice."""

from itertools import combinations
from pathlib import Path

import pytest

from testbed import runs, slots
from testbed.slots import RANGE, Slot

SLOTS = [Slot(number) for number in range(slots.SLOTS)]


def test_no_port_belongs_to_two_slots_or_to_outgoing_connections() -> None:
    ports = [port for slot in SLOTS for port in slot.ports]
    assert len(ports) == len(set(ports))
    assert max(ports) < 32768


def test_no_address_belongs_to_two_slots() -> None:
    networks = [network for slot in SLOTS for network in (slot.services, slot.pods)]
    assert not any(one.overlaps(other) for one, other in combinations(networks, 2))
    assert all(RANGE.supernet_of(network) for network in networks)


def test_the_link_to_the_node_has_its_own_addresses() -> None:
    for slot in SLOTS:
        ends = {slot.machine_address, slot.node_address}
        assert len(ends) == 2
        assert not any(end in network for end in ends for network in (slot.services, slot.pods))


def test_a_slot_is_claimed_once() -> None:
    with slots.claim() as first, slots.claim() as second:
        assert first != second


def test_a_slot_is_free_again_afterwards() -> None:
    for _ in range(len(SLOTS) + 1):
        with slots.claim():
            pass


class TestARun:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return tmp_path / "carrel-testbed/runs"

    def test_leaves_its_logs_and_nothing_else(self) -> None:
        with runs.new("one") as run:
            run.log("etcd").write_text("hello")
            (run.data / "key").touch()
        assert [entry.name for entry in run.folder.iterdir()] == ["logs"]
        assert [log.read_text() for log in run.logs] == ["hello"]

    def test_that_still_runs_is_not_cleaned_up(self) -> None:
        with runs.new("long") as long:
            for number in range(runs.KEPT + 2):
                with runs.new(f"short-{number}"):
                    pass
            assert long.data.exists()

    def test_that_was_killed_is_cleaned_up_by_the_next(self, cache: Path) -> None:
        killed = cache / "20260101-000000-1-0-killed"
        (killed / "logs").mkdir(parents=True)
        (killed / "data" / "etcd").mkdir(parents=True)
        (killed / "data" / "going-on").touch()
        with runs.new("next"):
            assert [entry.name for entry in killed.iterdir()] == ["logs"]

    def test_that_is_old_loses_its_logs(self, cache: Path) -> None:
        for number in range(runs.KEPT + 5):
            (cache / f"20260101-0000{number:02}-1-0-old" / "logs").mkdir(parents=True)
        with runs.new("next"):
            assert len(list(cache.iterdir())) == runs.KEPT + 1
