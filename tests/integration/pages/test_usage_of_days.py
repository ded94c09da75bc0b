"""What page, API and CSV say of two simulated days equals what happened in them, on an embedded cluster with its agent.

That a week with every fault is counted right is a property of the counter (`tests/properties`); here it goes from the
reports of an agent to the page.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

import pytest

from carrel.bookings.people import Role
from carrel.kubernetes.cluster import DeleteOptions
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.gpu_usage import GpuSample
from tests.integration.pages.test_coverage_on_pages import Seen, a_cluster
from tests.integration.pages.visitor import a_visitor, text_of
from tests.kit.booking import ADMIN, MEMBER, OTHER, Opened
from tests.kit.eventually import eventually
from tests.kit.gpu_use import BUSY, EMPTY, QUIET, ReportingAgent
from tests.kit.gpus import A6000
from tests.kit.usage import LOOK, Passes, usage_counted

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
GPUS = 3
LENGTH = 48 * HOUR


@dataclass
class Truth:
    """What really happened, in GPU hours of each person."""

    held: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    active: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass
class SimulatedLab:
    seen: Seen
    agent: ReportingAgent
    passes: Passes
    truth: Truth = field(default_factory=Truth)
    running: dict[str, tuple[str, int, bool]] = field(default_factory=dict)
    """Pod → its person, its GPU, and whether it computes."""

    async def starts(self, name: str, person: str, computes: bool) -> None:
        await self.seen.runs(name, person)
        (entry,) = await eventually(lambda: self._entries(name), "the GPU of the pod")
        self.running[name] = person, entry, computes

    def _entries(self, name: str) -> list[int]:
        entries = self.seen.replica.view.entries("n1")  # type: ignore[arg-type] # a node's name
        return [each.gpu.index for each in entries if any(s.holder.name == name for s in each.shares.values())]

    async def ends(self, name: str) -> None:
        await self.seen.lab.client.delete(PODS, name, "lab", how=DeleteOptions(grace_seconds=0))
        replica = self.seen.replica
        await eventually(lambda: replica.pods.store.get(name, "lab") is None, f"{name} is gone")
        await replica.collector.collect()
        await eventually(lambda: not self._entries(name), "its GPU is free")
        del self.running[name]

    async def goes_on(self, length: timedelta) -> None:
        """In minutes, in which agents sample and report, and the service looks."""
        samples: Mapping[str, GpuSample] = {f"gpu_{number}": EMPTY for number in range(GPUS)}
        samples = {**samples, **{f"gpu_{gpu}": BUSY if works else QUIET for _, gpu, works in self.running.values()}}
        for _ in range(length // MINUTE):
            await self.agent.sample_for(MINUTE, **samples)
            await self.passes(MINUTE)
            for person, _, works in self.running.values():
                self.truth.held[person] += 1 / 60
                self.truth.active[person] += works / 60


async def test_two_simulated_days_are_told_as_they_were(opened: Opened) -> None:
    chance = Random(1)
    async with a_cluster(opened, gpus=GPUS) as seen:
        agent = ReportingAgent(seen.lab, "n1", GPUS, [seen.replica.view.gpu_usages])
        began = opened.clock.now
        async with usage_counted(opened) as passes:
            lab, number = SimulatedLab(seen, agent, passes), 0
            while (left := began + LENGTH - opened.clock.now) > timedelta():
                if len(lab.running) < GPUS and chance.random() < 0.6:
                    number += 1
                    await lab.starts(f"pod-{number}", chance.choice([MEMBER, OTHER]), chance.random() < 0.5)
                elif lab.running:
                    await lab.ends(chance.choice(sorted(lab.running)))
                await lab.goes_on(min(chance.choice([7 * MINUTE, HOUR, 4 * HOUR]), left))
        admin = await a_visitor(opened, ADMIN, Role.LAB_ADMIN)
        rows = list(csv.DictReader(io.StringIO(text_of(await admin.get("/usage.csv?days=14")))))
        api = (await (await opened.caller(ADMIN)).get("/api/v1/usage?by=model&step=day")).json["items"]
        page = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text_of(await admin.get("/usage?days=14"))))

    truth = lab.truth
    held, active = sum(truth.held.values()), sum(truth.active.values())
    assert number > 7 and held > 20, "they were not empty"
    assert {row["person"]: float(row["held_hours"]) for row in rows} == pytest.approx(truth.held, rel=0.01)
    at_changes = number * LOOK / HOUR  # whose GPU it is is not known for a moment when a pod comes or goes
    active_hours = {row["person"]: float(row["active_hours"]) for row in rows}
    assert active_hours == pytest.approx(truth.active, rel=0.01, abs=at_changes)
    assert sum(float(row["idle_hours"]) for row in rows) == pytest.approx(held - active, rel=0.01, abs=at_changes)
    assert sum(each["held_gpu_hours"] for each in api) == pytest.approx(held, rel=0.01)
    assert sum(each["active_gpu_hours"] for each in api) == pytest.approx(active, rel=0.01, abs=at_changes)
    assert len(api) == 3 and {each["model"] for each in api} == {A6000}, "two days from noon touch three"
    (shown,) = re.findall(r"Held ([\d,]+) GPU hours", page)
    assert float(shown.replace(",", "")) == pytest.approx(held, rel=0.01, abs=0.5)
