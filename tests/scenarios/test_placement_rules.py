"""What the extender reports of its rules is what it places pods by, also after the configuration has changed."""

import asyncio
import contextlib

import pytest

from carrel.cluster.placement_rules import rules_in_force
from carrel.scheduling import run
from carrel.scheduling.assembly import SchedulerOptions
from tests.kit.eventually import LIMIT_S
from tests.kit.lab import OURS, Lab, a_lab


async def reported_limit(lab: Lab) -> int | None:
    rules = await rules_in_force(lab.client, OURS)
    return rules.opportunistic_gpus if rules is not None else None


async def test_a_limit_that_changes_while_the_extender_runs_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HOUSEKEEPING_S", 0.01)
    async with a_lab([]) as lab, lab.replica() as replica:
        reporting = asyncio.ensure_future(run._report_rules(replica, SchedulerOptions()))
        seen = []
        async with asyncio.timeout(LIMIT_S):
            for limit in (0, 2):
                replica.options.tier_policy.opportunistic_gpus = limit
                while await reported_limit(lab) != limit:  # noqa: ASYNC110 # only the API server knows
                    await asyncio.sleep(0.01)
                seen.append(limit)
        reporting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporting
    assert seen == [0, 2]
