"""Which GPUs that pods hold are active or idle, as a process puts it together from reports, Leases and pods."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from carrel.cluster.gpu_activities import GpuActivities
from carrel.http.metrics import ComponentMetrics
from carrel.ids import GpuUuid
from carrel.ledger.gpu_activity import ActivityState, GpuActivity, UnknownWhy
from carrel.ledger.gpu_usage import GpuSample
from carrel.lifecycle.reporting.gpu_use import GpuUse
from carrel.parsing.time import seconds
from tests.kit.definitions import loosen_field
from tests.kit.eventually import eventually
from tests.kit.gpu_use import BUSY, EMPTY, QUIET, ReportingAgent
from tests.kit.gpus import A6000, N1, a_node
from tests.kit.lab import Lab, Replica, a_lab

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
ACTIVE, NEW, IDLE, UNKNOWN = ActivityState.ACTIVE, ActivityState.NEW, ActivityState.IDLE, ActivityState.UNKNOWN
ADA = {"carrel.dev/user": "ada@lab.example", "carrel.dev/tier": "opportunistic"}


@dataclass
class Watched:
    lab: Lab
    replica: Replica
    agent: ReportingAgent

    @property
    def activities(self) -> GpuActivities:
        return self.replica.view.activities

    async def holds(self, name: str, memory: str = "") -> None:
        """A pod that holds a whole GPU, or a part of one."""
        limits = {"aliyun.com/gpu-mem": memory} if memory else {"nvidia.com/gpu": "1"}
        pod = await self.lab.pod(name, limits=limits, annotations=ADA)
        assert await self.replica.bind(pod, "n1") is None
        await eventually(lambda: self.pod(name), "the bound pod in the cache")

    async def passes(self, length: timedelta, **samples: GpuSample) -> None:
        await self.agent.sample_for(length, **samples)

    def gpu(self, index: int) -> GpuActivity | None:
        entry = self.replica.view.entry(GpuUuid(f"GPU-n1-{index}"))
        assert entry is not None
        return self.activities.of(entry)

    def pod(self, name: str) -> GpuActivity | None:
        pod = self.replica.pods.store.get(name, "lab")
        assert pod is not None
        return self.activities.of_pod(pod)


@asynccontextmanager
async def a_watched_node(gpus: int = 2) -> AsyncIterator[Watched]:
    async with a_lab([a_node("n1", gpus)]) as lab, lab.replica(is_shown=True) as replica:
        yield Watched(lab, replica, ReportingAgent(lab, "n1", gpus, [replica.view.gpu_usages]))


async def test_a_pod_that_stops_computing_becomes_idle_after_half_an_hour() -> None:
    async with a_watched_node() as seen:
        await seen.holds("train")
        assert (before := seen.pod("train")) and before.why is UnknownWhy.NO_REPORT
        await seen.passes(10 * MINUTE, gpu_0=BUSY)
        stopped = seen.lab.clock.now
        assert (now := seen.pod("train")) and now.state is ACTIVE

        await seen.passes(29 * MINUTE, gpu_0=QUIET)
        assert (now := seen.pod("train")) and now.state is ACTIVE
        version = seen.replica.view.activities.version
        await seen.passes(2 * MINUTE, gpu_0=QUIET)

        assert (now := seen.pod("train")) and (now.state, now.since) == (IDLE, stopped)
        assert now.recent is not None and 0.15 < now.recent.part < 0.35, "ten minutes or less of the 40"
        assert seen.gpu(1) is None, "nobody holds it"
        assert list(seen.replica.view.activities.changed_since(version)) == [N1], "its map is drawn again"


async def test_what_the_pod_before_did_is_not_told_of_the_next_one() -> None:
    async with a_watched_node(gpus=1) as seen:
        await seen.passes(2 * HOUR, gpu_0=BUSY)  # by whomever
        await seen.holds("notebook")
        assert (now := seen.pod("notebook")) and (now.state, now.recent) == (NEW, None)

        await seen.passes(40 * MINUTE, gpu_0=QUIET)

        assert (now := seen.pod("notebook")) and now.state is IDLE
        assert now.recent is not None and now.recent.active == timedelta()


async def test_pods_that_share_a_gpu_are_never_shown_each_others_work() -> None:
    async with a_watched_node(gpus=1) as seen:
        await seen.holds("one", "4000")
        await seen.holds("two", "4000")
        await seen.passes(10 * MINUTE, gpu_0=BUSY)

        assert (together := seen.gpu(0)) and together.state is ACTIVE and together.recent is not None
        for name in ("one", "two"):
            assert (now := seen.pod(name)) and (now.why, now.recent) == (UnknownWhy.SHARED, None)

        await seen.passes(40 * MINUTE, gpu_0=QUIET)
        for name in ("one", "two"):
            assert (now := seen.pod(name)) and now.state is IDLE, "none of them computes"


async def test_a_counter_that_is_stuck_at_zero_makes_nobody_idle() -> None:
    async with a_watched_node() as seen:
        await seen.holds("train")
        await seen.passes(2 * HOUR, gpu_0=replace(BUSY, utilisation=0.0), gpu_1=EMPTY)
        assert (now := seen.pod("train")) and now.why is UnknownWhy.CONTRADICTION


async def test_an_agent_that_falls_silent_leaves_nothing_but_since_when() -> None:
    async with a_watched_node() as seen:
        await seen.holds("train")
        await seen.passes(HOUR, gpu_0=QUIET)
        last = seen.lab.clock.now
        seen.lab.clock.now += 10 * MINUTE
        assert (now := seen.pod("train")) and (now.why, now.since) == (UnknownWhy.OLD_REPORT, last)


async def test_a_report_that_cannot_be_read_counts_as_none_and_hurts_no_other() -> None:
    async with a_watched_node() as seen:
        await seen.holds("train")
        await seen.passes(MINUTE, gpu_0=BUSY)
        odd = [{"uuid": "GPU-n1-0", "since": "2026-01-01T00:00:00Z", "until": "9999-99-99T00:00:00Z"}]
        await loosen_field(seen.lab.client, "usage")
        await seen.agent.report(usage=odd)
        await eventually(lambda: (now := seen.pod("train")) and now.why is UnknownWhy.NO_REPORT, "none")


async def test_a_process_that_restarts_says_since_when_it_knows() -> None:
    async with a_watched_node() as seen:
        await seen.holds("train")
        await seen.passes(2 * HOUR, gpu_0=BUSY)
        async with seen.lab.replica(is_shown=True) as restarted:
            entry = restarted.view.entry(GpuUuid("GPU-n1-0"))
            assert entry is not None
            first = restarted.view.activities.of(entry)
            assert first is not None and (first.state, first.recent) == (ACTIVE, None), "it invents no hour"
            began = seen.lab.clock.now
            seen.agent.readers.append(restarted.view.gpu_usages)
            await seen.passes(7 * MINUTE, gpu_0=QUIET)
            again = restarted.view.activities.of(entry)
        assert again is not None and again.recent is not None
        assert began <= again.recent.since <= began + 2 * MINUTE


# --- nothing of it is the ledger's -----------------------------------------------------------------------------------


async def test_a_report_with_nothing_new_but_what_gpus_do_changes_nothing_in_the_ledger() -> None:
    """So it wakes no pod, and what was worked out for an answer stays."""
    async with a_watched_node() as seen, seen.lab.replica() as scheduler:
        await seen.holds("train")
        waiting = await scheduler.sees(await seen.lab.pod("waits", limits={"aliyun.com/gpu-mem": "4000"}))
        scheduler.filter(waiting, [N1])
        writes = len(scheduler.transport.writes)
        room, versions = scheduler.ledger.rooms[N1], [scheduler.ledger.version, seen.replica.ledger.version]

        await seen.passes(HOUR, gpu_0=BUSY, gpu_1=QUIET)
        known, now = scheduler.node_statuses.store, seconds(seen.lab.clock.now)
        await eventually(lambda: (there := known.get("n1")) and there.status.heartbeat == now, "the report")
        scheduler.filter(waiting, [N1])

        assert [scheduler.ledger.version, seen.replica.ledger.version] == versions
        assert scheduler.ledger.rooms[N1] is room, "what was summed up is still good"
        assert len(scheduler.transport.writes) == writes


# --- metrics ---------------------------------------------------------------------------------------------------------


def scraped(use: GpuUse) -> dict[str, float]:
    metrics = ComponentMetrics()
    metrics.read_on_scrape(use.read)
    found = [line.rsplit(" ", 1) for line in metrics.text().decode().splitlines() if line.startswith("carrel_gpu")]
    return {name: float(value) for name, value in found}


async def test_prometheus_sees_how_many_held_gpus_are_active_idle_and_unknown() -> None:
    async with a_watched_node(gpus=5) as seen:
        use = GpuUse(seen.replica, seen.activities)
        assert scraped(use) == {}, "nobody holds a GPU"
        await seen.lab.book("ada@lab.example", gpus=1)
        for name in ("booked", "works", "idles", "stuck"):
            await seen.holds(name)
        stuck = replace(BUSY, utilisation=0.0)
        await seen.passes(HOUR, gpu_0=QUIET, gpu_1=BUSY, gpu_2=QUIET, gpu_3=stuck)

        found = {name: value for name, value in scraped(use).items() if value}

    assert found == {
        f'carrel_gpu_busy_ratio{{model="{A6000}"}}': pytest.approx(0.3),
        f'carrel_gpus_idle_held{{model="{A6000}",tier="booked"}}': 1,
        f'carrel_gpus_idle_held{{model="{A6000}",tier="opportunistic"}}': 1,
        f'carrel_gpus_active{{model="{A6000}"}}': 1,
        f'carrel_gpus_use_unknown{{model="{A6000}"}}': 1,
    }
