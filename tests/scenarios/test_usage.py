"""What a running booking service counts and writes of a cluster, also if it or its database is away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from carrel.bookings.records import StoreUnavailable
from carrel.bookings.store.database import Database
from carrel.bookings.store.usage import SqlUsage
from carrel.bookings.usage.recorder import UsageRecorder
from carrel.bookings.usage.sums import By, Counted, Progress, Step, UsageQuery, UsageSum
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.gpu_usage import GpuSample
from tests.kit.eventually import eventually
from tests.kit.gpu_use import BUSY, QUIET, ReportingAgent
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab

STOCKHOLM = ZoneInfo("Europe/Stockholm")
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
ADA = {"carrel.dev/user": "ada@lab.example", "carrel.dev/tier": "opportunistic"}


class FragileUsage(SqlUsage):
    """A database that goes away, or whose answers are lost."""

    is_away = False
    loses_answers = False

    async def counted(self) -> Counted:
        if self.is_away:
            raise StoreUnavailable("it is away")
        return await super().counted()

    async def write(self, seen: datetime | None, progress: Progress, *more: object) -> bool:
        if self.is_away:
            raise StoreUnavailable("it is away")
        answer = await super().write(seen, progress, *more)  # type: ignore[arg-type] # those that it was given
        if self.loses_answers:
            raise StoreUnavailable("the connection was lost")
        return answer


@dataclass
class Service:
    """A replica of the booking service."""

    replica: Replica
    recorder: UsageRecorder

    @classmethod
    def on(cls, replica: Replica, lab: Lab, usage: SqlUsage) -> "Service":
        recorder = UsageRecorder(usage, replica.view.looks, STOCKHOLM, lab.clock, lab.clock.seconds)
        return cls(replica, recorder)

    async def step(self) -> None:
        self.recorder.observe()
        await self.recorder.round()


@dataclass
class CountedLab:
    lab: Lab
    usage: FragileUsage
    agent: ReportingAgent
    services: list[Service] = field(default_factory=list)

    async def holds(self, name: str, memory: str = "") -> None:
        limits = {"aliyun.com/gpu-mem": memory} if memory else {"nvidia.com/gpu": "1"}
        pod = await self.lab.pod(name, limits=limits, annotations=ADA)
        assert await self.services[0].replica.bind(pod, "n1") is None
        for each in self.services:
            store = each.replica.pods.store
            await eventually(lambda store=store: (now := store.get(name, "lab")) and now.spec.node_name, name)  # type: ignore[misc] # bound at once

    async def ends(self, name: str) -> None:
        done = MergePatch({"status": {"phase": "Succeeded"}})
        pod = await self.lab.client.patch(PODS, name, done, "lab", subresource="status")
        for each in self.services:
            await each.replica.sees(pod)
            await each.replica.collector.collect()
            ledger, uid = each.replica.ledger, pod["metadata"]["uid"]
            await eventually(lambda ledger=ledger, uid=uid: not ledger.shares_of(uid), "its GPU is free")  # type: ignore[misc] # bound at once

    async def passes(self, length: timedelta, **samples: GpuSample) -> None:
        """With reports, if there are samples."""
        for _ in range(length // MINUTE):
            if samples:
                await self.agent.sample_for(MINUTE, **samples)
            else:
                self.lab.clock.now += MINUTE
            for each in self.services:
                await each.step()

    async def found(self, by: By = By.PERSON, step: Step = Step.WHOLE) -> list[UsageSum]:
        for each in self.services:
            await each.recorder.round(is_last=True)
        query = UsageQuery(self.lab.clock.now - 3 * DAY, self.lab.clock.now, step, (by,))
        return list(await self.usage.sums(query, STOCKHOLM))


@asynccontextmanager
async def counting(folder: Path, gpus: int = 2, replicas: int = 1) -> AsyncIterator[CountedLab]:
    database = Database(f"sqlite:///{folder}/carrel.db")
    await database.migrate()
    usage = FragileUsage(database)
    async with a_lab([a_node("n1", gpus)]) as lab, lab.replica(is_shown=True) as first:
        agent = ReportingAgent(lab, "n1", gpus, [first.view.gpu_usages])
        counted = CountedLab(lab, usage, agent, [Service.on(first, lab, usage)])
        if replicas == 1:
            await counted.services[0].step()
            yield counted
        else:
            async with lab.replica(is_shown=True) as second:
                agent.readers.append(second.view.gpu_usages)
                counted.services.append(Service.on(second, lab, usage))
                for each in counted.services:
                    await each.step()
                yield counted
    await database.aclose()


async def test_while_the_database_has_never_answered_nothing_piles_up(tmp_path: Path) -> None:
    async with counting(tmp_path) as counted:
        counted.usage.is_away = True
        looks = counted.services[0].replica.view.looks
        started_anew = Service.on(counted.services[0].replica, counted.lab, counted.usage)
        await counted.holds("train")
        assert looks.changed()
        await counted.holds("eval")

        started_anew.recorder.observe()

        assert not looks.changed()


async def test_a_pod_of_seven_minutes_is_counted_seven_minutes(tmp_path: Path) -> None:
    async with counting(tmp_path) as seen:
        await seen.passes(3 * MINUTE, gpu_0=QUIET)
        seen.lab.clock.now += 13 * SECOND
        await seen.holds("train")
        await seen.passes(7 * MINUTE, gpu_0=BUSY)
        await seen.ends("train")
        await seen.passes(10 * MINUTE, gpu_0=QUIET)

        (sum_,) = await seen.found()
        assert sum_.person == "ada@lab.example"
        assert sum_.held * 60 == pytest.approx(7, abs=0.05)
        assert sum_.active * 60 == pytest.approx(7, abs=1.2), "of the first and the last minute it is not always known"
        assert sum_.idle * 60 == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("replicas", [1, 2], ids=["one replica", "two replicas"])
async def test_active_and_idle_hours_are_those_of_the_gpu(tmp_path: Path, replicas: int) -> None:
    async with counting(tmp_path, replicas=replicas) as seen:
        await seen.holds("train")
        await seen.passes(30 * MINUTE, gpu_0=BUSY)
        await seen.passes(60 * MINUTE, gpu_0=QUIET)

        (sum_,) = await seen.found()
        assert sum_.held == pytest.approx(1.5, abs=0.01), "nothing is counted twice"
        assert sum_.active == pytest.approx(0.5, abs=0.03)
        assert sum_.idle == pytest.approx(1.0, abs=0.03)


async def test_of_pods_that_share_a_gpu_only_idleness_is_known(tmp_path: Path) -> None:
    async with counting(tmp_path, gpus=1) as seen:
        await seen.holds("one", "4069")
        await seen.holds("two", "4069")
        await seen.passes(30 * MINUTE, gpu_0=BUSY)
        await seen.passes(60 * MINUTE, gpu_0=QUIET)

        (sum_,) = await seen.found()
        assert sum_.held == pytest.approx(0.75, rel=0.01)
        assert sum_.active == 0
        assert sum_.idle == pytest.approx(0.5, rel=0.03)
        assert sum_.unknown == pytest.approx(0.25, rel=0.05)


async def test_a_counter_that_is_stuck_makes_no_idle_hours(tmp_path: Path) -> None:
    async with counting(tmp_path) as seen:
        await seen.holds("train")
        await seen.passes(30 * MINUTE, gpu_0=GpuSample(0.0, None, 280.0))

        (sum_,) = await seen.found()
        assert (sum_.active, sum_.idle) == (0, 0)
        assert sum_.unknown == pytest.approx(0.5, abs=0.01)


async def test_after_a_restart_a_pod_counts_throughout_with_what_its_gpu_did(tmp_path: Path) -> None:
    async with counting(tmp_path) as seen:
        await seen.holds("train")
        await seen.passes(30 * MINUTE, gpu_0=BUSY)
        last = (await seen.usage.counted()).until
        seen.services.clear()
        await seen.passes(90 * MINUTE, gpu_0=BUSY)
        await seen.passes(30 * MINUTE, gpu_0=QUIET)

        async with seen.lab.replica(is_shown=True) as restarted:
            seen.services.append(Service.on(restarted, seen.lab, seen.usage))
            seen.agent.readers.append(restarted.view.gpu_usages)
            await seen.passes(5 * MINUTE, gpu_0=QUIET)

            (sum_,) = await seen.found()
            assert sum_.held == pytest.approx(155 / 60, abs=0.02)
            assert sum_.active == pytest.approx(2.0, abs=0.05)
            assert sum_.idle == pytest.approx(35 / 60, abs=0.05)
            (gap,) = await seen.usage.gaps(seen.lab.clock.now - DAY, seen.lab.clock.now)
            assert gap.start == last
            assert seen.services[0].recorder.gaps == 1


async def test_what_is_counted_while_the_database_is_away_for_a_day_is_written_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with counting(tmp_path) as seen:
        await seen.holds("train")
        await seen.passes(30 * MINUTE)
        recorder = seen.services[0].recorder
        seen.usage.is_away = True
        await seen.passes(24 * HOUR)
        assert recorder.waiting < 60, "minutes that wait are summed up by the hour"
        assert recorder.age_s > 23 * 3600
        assert [each.message for each in caplog.records if "usage_" in each.message] == ["usage_waits: it is away"]

        seen.usage.is_away = False
        await seen.passes(MINUTE)

        assert recorder.age_s < 600
        assert [each.message for each in caplog.records if "usage_" in each.message][1:] == [
            "usage_goes_on after=1 day, 0:00:00"
        ]
        by_hour = await seen.found(step=Step.HOUR)
        assert sum(each.held for each in by_hour) == pytest.approx(24.5 + 1 / 60, abs=0.01)
        assert max(each.held for each in by_hour) <= 1.0
        assert await seen.usage.gaps(seen.lab.clock.now - 2 * DAY, seen.lab.clock.now) == []


async def test_a_write_whose_answer_was_lost_is_not_repeated(tmp_path: Path) -> None:
    async with counting(tmp_path) as seen:
        await seen.holds("train")
        seen.usage.loses_answers = True
        await seen.passes(HOUR)
        seen.usage.loses_answers = False
        await seen.passes(HOUR)

        (sum_,) = await seen.found()
        assert sum_.held == pytest.approx(2.0, abs=0.001)


async def test_a_clock_that_is_wrong_for_some_minutes_counts_nothing_twice(tmp_path: Path) -> None:
    async with counting(tmp_path) as seen:
        await seen.holds("train")
        steady = seen.lab.clock.seconds()
        (service,) = seen.services
        service.recorder = UsageRecorder(
            seen.usage, service.replica.view.looks, STOCKHOLM, seen.lab.clock, lambda: steady
        )
        began = seen.lab.clock.now
        for minute in range(120):
            steady += 60
            wrong = 30 * DAY if 30 <= minute < 38 else -30 * DAY if 60 <= minute < 65 else timedelta()
            seen.lab.clock.now = began + (minute + 1) * MINUTE + wrong
            await service.step()

        (sum_,) = await seen.found()
        assert sum_.held == pytest.approx(2.0, abs=0.01)


async def test_usage_that_a_wrong_clock_has_counted_ahead_does_not_stop_it_for_good(tmp_path: Path) -> None:
    async with counting(tmp_path) as seen:
        ahead = seen.lab.clock.now + 30 * DAY
        began = (await seen.usage.counted()).until
        assert await seen.usage.write(began, Progress(ahead), {}, STOCKHOLM)
        await seen.holds("train")
        await seen.passes(HOUR)

        (sum_,) = await seen.found()
        assert sum_.held == pytest.approx(50 / 60, abs=0.05), "for ten minutes its own clock might be the wrong one"
        assert (await seen.usage.counted()).until == seen.lab.clock.now


async def test_while_a_watch_fails_nothing_is_counted_and_afterwards_what_is_known(tmp_path: Path) -> None:
    """Pods may end unseen while the API server is away."""
    async with counting(tmp_path) as seen:
        await seen.holds("train")
        await seen.holds("short")
        await seen.passes(10 * MINUTE)
        leases = seen.services[0].replica.leases
        leases._failures = 1
        await seen.passes(HOUR)
        assert seen.services[0].recorder.age_s > 3000
        await seen.ends("short")
        leases._failures = 0
        await seen.passes(10 * MINUTE)

        held = sorted(each.held * 60 for each in await seen.found(By.GPU))
        assert held == pytest.approx([10, 80], abs=0.5), "when the other one ended, nobody knows"
