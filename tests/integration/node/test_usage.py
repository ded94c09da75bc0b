"""What GPUs are used for: counted by the agent, and carried by the report that it writes anyway."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from carrel.dialects.gpu_usage import NODE_USAGES, read_usage
from carrel.dialects.gpuclaim import Remarks
from carrel.ids import GpuUuid
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import FieldValidation, MergePatch
from carrel.kubernetes.decoding import read_object
from carrel.ledger.gpu_usage import GpuSample, GpuUsage
from carrel.ledger.gpus import MiB
from carrel.node.comparison import ComparisonResult
from carrel.node.gpu_usage_counter import GpuUsageCounter
from carrel.node.interfaces import ControlGroup, MachineState
from carrel.node.report import HEARTBEAT, Report, Reporter
from tests.kit.agent import an_agent, becomes
from tests.kit.definitions import forget_field, loosen_field
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, a_lab

BUSY = GpuSample(1.0, MiB(4000), 250.0, 60)
TEN = timedelta(seconds=10)
NODE = a_node("n1", gpus=1)
THE_GPU = NODE.gpus[0].uuid
INSTANT = "2026-01-01T00:00:00Z"


class BusyMachine:
    """Its one GPU always computes."""

    async def read_state(self) -> MachineState:
        return MachineState(NODE.gpus)

    async def memory_limits(self, groups: Sequence[ControlGroup]) -> Mapping[ControlGroup, MiB | None]:
        return {}

    async def sample(self) -> Mapping[GpuUuid, GpuSample]:
        return {THE_GPU: BUSY}

    async def wait_changed(self) -> None: ...


class CountingAgent:
    """The parts of an agent that count and report, without its loop."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._steady_s = 0.0
        self.counter = GpuUsageCounter(lab.client, BusyMachine(), N1, lab.clock, lambda: self._steady_s)
        self.reporter = Reporter(Client(lab.api, FieldValidation.WARN), lab.clock)  # as in a process

    async def sample_for(self, length: timedelta) -> None:
        await self.counter.sample()
        for _ in range(length // TEN):
            self._lab.clock.now += TEN
            await self.sample_after_ten()

    async def sample_after_ten(self) -> None:
        """Ten seconds of its own clock have passed."""
        self._steady_s += TEN.total_seconds()
        await self.counter.sample()

    async def report(self) -> bool:
        remarks = Remarks(usage=self.counter.usages_of(NODE.gpus))
        return await self.reporter.report(Report(NODE, ComparisonResult(), self._lab.clock(), remarks))


async def reported(lab: Lab) -> GpuUsage:
    return read_usage(read_object(NODE_USAGES, await lab.client.get(NODE_USAGES, "n1")))[THE_GPU]


async def test_an_agent_reports_what_its_gpus_are_used_for() -> None:
    async with a_lab([]) as lab, an_agent(lab) as running:
        device = {"model": "Tesla-V100", "memoryMiB": 16276, "activity": "idle"}
        running.simulate([device, {**device, "unusable": "XID 79"}])

        async def uuids() -> object:
            return [entry["uuid"] for entry in (await running.status()).get("usage", ())]

        await becomes(uuids, [entry["uuid"] for entry in await running.devices()])


async def test_a_new_agent_continues_the_sums_of_the_one_before() -> None:
    async with a_lab([]) as lab:
        first = CountingAgent(lab)
        await first.sample_for(timedelta(minutes=10))
        assert await first.report()
        before = await reported(lab)
        lab.clock.now += timedelta(minutes=30)  # nothing is known of the time in which no agent ran

        second = CountingAgent(lab)
        await second.sample_for(timedelta(minutes=5))
        await second.report()
        after = await reported(lab)

    assert before.busy == timedelta(minutes=10)
    assert (after.since, after.busy, after.sampled) == (before.since, timedelta(minutes=15), timedelta(minutes=15))
    assert after.energy_joules == 15 * 60 * 250


async def test_what_gpus_do_is_written_with_the_heartbeat_and_never_by_itself() -> None:
    async with a_lab([]) as lab:
        agent = CountingAgent(lab)
        await agent.sample_for(TEN)
        assert await agent.report()
        lab.clock.now += HEARTBEAT / 3
        await agent.counter.sample()
        assert not await agent.report()
        lab.clock.now += HEARTBEAT
        assert await agent.report()


async def test_two_agents_at_once_count_no_time_twice() -> None:
    async with a_lab([]) as lab:
        old = CountingAgent(lab)
        await old.sample_for(timedelta(minutes=5))
        await old.report()
        new = CountingAgent(lab)
        await new.counter.sample()
        seen = [(await reported(lab)).busy]
        for step in range(30):
            lab.clock.now += TEN
            for agent in (old, new):
                await agent.sample_after_ten()
            await (old if step % 2 else new).report()
            seen.append((await reported(lab)).busy)
    assert seen == sorted(seen)
    assert seen[0] == timedelta(minutes=5)
    assert timedelta(minutes=10) - HEARTBEAT <= seen[-1] <= timedelta(minutes=10)


async def test_how_many_gpus_are_active_is_written_and_is_no_reason_to_write() -> None:
    async with a_lab([]) as lab:
        reporter = Reporter(lab.client, lab.clock)
        now = lab.clock()
        idle = GpuUsage(now, now, last_active=now - timedelta(minutes=30))

        async def report(usage: GpuUsage) -> bool:
            remarks = Remarks(usage={THE_GPU: usage})
            return await reporter.report(Report(NODE, ComparisonResult(), lab.clock(), remarks))

        async def active() -> object:
            return (await lab.client.get(NODE_USAGES, "n1"))["status"]["active"]

        assert await report(idle)
        assert await active() == 0
        working = replace(idle, last_active=now - timedelta(minutes=29))
        assert not await report(working)
        lab.clock.now += HEARTBEAT
        assert await report(working)
        assert await active() == 1


async def test_usage_that_cannot_be_read_begins_anew() -> None:
    async with a_lab([]) as lab:
        agent = CountingAgent(lab)
        await agent.sample_for(TEN)
        await agent.report()
        sums = {"since": INSTANT, "until": INSTANT, "busySeconds": 10**9, "lastActive": "0000-01-01T00:00:00Z"}
        await loosen_field(lab.client, "usage")
        odd = MergePatch({"status": {"usage": [{"uuid": THE_GPU, **sums}]}})
        await lab.client.patch(NODE_USAGES, "n1", odd, subresource="status")

        second = CountingAgent(lab)
        await second.sample_for(TEN)
        lab.clock.now += HEARTBEAT
        await second.report()
        assert (await reported(lab)).busy == TEN


async def test_a_cluster_that_does_not_know_the_usage_is_named() -> None:
    async with a_lab([]) as lab:
        await forget_field(lab.client, "usage")
        agent = CountingAgent(lab)
        await agent.sample_for(TEN)
        await agent.report()
        assert "unknown: status.usage" in agent.reporter.unknown


async def test_a_report_that_differs_only_in_usage_changes_nothing_in_the_ledger() -> None:
    async with a_lab([NODE]) as lab, lab.replica() as extender:
        await eventually(lambda: extender.ledger.entries(N1))
        version = extender.ledger.version
        usage = [{"uuid": THE_GPU, "since": INSTANT, "until": INSTANT, "busySeconds": 5}]
        body = MergePatch({"status": {"usage": usage}})
        sent = await lab.client.patch(NODE_USAGES, "n1", body, subresource="status")

        def seen() -> bool:
            there = extender.watches.node_statuses.store.get("n1")
            return there is not None and there.metadata.resource_version == sent["metadata"]["resourceVersion"]

        await eventually(seen)
        assert extender.ledger.version == version
