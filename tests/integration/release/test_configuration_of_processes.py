"""The processes of a cluster follow one configuration: a change is in force without a restart where that is safe, and a
mistake changes nothing."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from carrel.cluster.configuration_record import APPLIED, GIVEN, find, record_of
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from tests.integration.scheduling.test_process import Process, a_served_lab, carrel_process
from tests.kit.configuration import configure, wait_recorded
from tests.kit.eventually import LIMIT_S
from tests.kit.lab import Lab


@asynccontextmanager
async def a_controller() -> AsyncIterator[tuple[Lab, str, Process]]:
    async with (
        a_served_lab() as (lab, url),
        carrel_process("controller", "--server", url, "--port", "0") as controller,
    ):
        await wait_recorded(lab.client)
        yield lab, url, controller


async def refused(lab: Lab) -> list[str]:
    there = await find(lab.client, APPLIED, "carrel")
    return record_of(there).refused.mistakes if there is not None else []


async def becomes(look: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await look():  # noqa: ASYNC110 # it can only be polled
            await asyncio.sleep(0.05)


async def test_a_change_is_in_force_while_processes_run_and_those_that_must_start_again_by_themselves() -> None:
    async with (
        a_controller() as (lab, url, controller),
        carrel_process("extender", "--server", url, "--port", "0") as extender,
    ):
        await extender.wait_line("ready nodes=1")

        await configure(lab.client, "tiers: {revocationGrace: 30s}\nscheduling: {placement: spread}")

        await controller.wait_line("configuration_changed tiers.revocationGrace: 0s → 30s")
        await extender.wait_line(
            "starting_again for a change of the configuration: scheduling.placement: pack → spread"
        )
        await extender.wait_line("ready nodes=1")
        assert extender.running.returncode is None


async def test_a_hub_that_is_trusted_no_more_is_trusted_no_more_by_the_booking_service(tmp_path: Path) -> None:
    """It has settled who the callers are, and remembers their tokens: it starts again."""
    hub = "system:serviceaccount:jhub:hub"
    async with a_controller() as (lab, url, _):
        await configure(lab.client, f"hubs: {{accounts: ['{hub}']}}")
        database = ("--database", f"sqlite:///{tmp_path}/carrel.db")
        async with carrel_process("booking", "--server", url, "--port", "0", *database) as booking:
            await booking.wait_line("listening url=")
            await configure(lab.client, "{}")
            await booking.wait_line(f"starting_again .* hubs.accounts: .*{hub}.* → ")
            await booking.wait_line("listening url=")


async def test_a_record_that_somebody_edits_is_written_again_before_any_process_starts_again_for_it() -> None:
    """The controller would start again for it too, and forget that the record is not its own."""
    async with (
        a_controller() as (lab, url, controller),
        carrel_process("extender", "--server", url, "--port", "0") as extender,
        lab.replica() as replica,
    ):
        await extender.wait_line("ready nodes=1")
        assert await replica.bind(await lab.pod("train", limits={"nvidia.com/gpu": "1"}), "n1") is None
        await configure(lab.client, "memory: {unit: GiB}")
        await becomes(lambda: refused(lab))  # the controller knows that the pod holds a GPU
        await configure(lab.client, "tiers: {minimumTime: 1m}")
        await controller.wait_line("configuration_changed tiers.minimumTime: 10m → 1m")

        await configure(lab.client, "memory: {unit: GiB}", APPLIED)
        await controller.wait_line("configuration_record_not_ours: it is written again")
        await configure(lab.client, "tiers: {minimumTime: 2m}")

        for process in (controller, extender):
            await process.wait_line("configuration_changed tiers.minimumTime: 1m → 2m")
            assert "starting_again" not in "".join(process.lines)
        there = await find(lab.client, APPLIED, "carrel")
        assert there is not None and record_of(there).history[-1].changes == ["tiers.minimumTime: 1m → 2m"]


async def test_a_process_that_is_told_to_end_does_not_start_again_for_a_change() -> None:
    async with a_controller() as (lab, url, _), carrel_process("extender", "--server", url, "--port", "0") as extender:
        await extender.wait_line("ready nodes=1")
        await configure(lab.client, "scheduling: {placement: spread}")
        await becomes(lambda: recorded_text(lab))
        extender.running.send_signal(signal.SIGTERM)
        code, said = await extender.wait_end()
    assert code == 0 and "starting_again" not in said


async def recorded_text(lab: Lab) -> bool:
    there = await find(lab.client, APPLIED, "carrel")
    return there is not None and "spread" in record_of(there).text


async def test_a_mistake_changes_nothing_and_a_process_that_starts_meanwhile_says_so() -> None:
    async with a_controller() as (lab, url, _):
        await configure(lab.client, "tiers: {revocationGrace: soon}\nmemroy: {unit: GiB}")
        await becomes(lambda: refused(lab))

        async with carrel_process("extender", "--server", url, "--port", "0") as extender:
            await extender.wait_line("configuration_refused the last good one goes on: .*memroy is no field")
            await extender.wait_line("ready nodes=1")

        await configure(lab.client, "{}")

        async def is_good() -> bool:
            return not await refused(lab)

        await becomes(is_good)


async def test_without_any_configuration_a_process_ends_and_says_what_to_do() -> None:
    async with a_served_lab() as (lab, url):
        await lab.client.delete(CONFIG_MAPS, GIVEN, "carrel")
        async with carrel_process("extender", "--server", url, "--port", "0") as extender:
            code, said = await extender.wait_end()

    assert code == 2
    assert "✗ There is no configuration that can be used" in said
    assert "there is no ConfigMap carrel/carrel" in said and "Traceback" not in said


async def test_a_broken_configuration_that_never_was_good_ends_a_process_with_all_mistakes() -> None:
    async with a_served_lab() as (lab, url):
        await configure(lab.client, "tiers: {revocationGrace: soon}\nlab: {timezone: 3}")
        async with carrel_process("extender", "--server", url, "--port", "0") as extender:
            code, said = await extender.wait_end()

    assert code == 2
    assert "tiers.revocationGrace is 'soon'" in said and "lab.timezone is '3'" in said
