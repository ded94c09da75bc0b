"""kill -9 at every statement of a booking: no acknowledged booking is lost, and none is made twice."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_process_killed_at_any_step_leaves_all_or_nothing_and_a_retry_books_once(database_url: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "tests.integration.bookings.dying", database_url],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert told.returncode == 0, told.stderr
    steps = [json.loads(line) for line in told.stdout.splitlines()]
    *killed, survived = steps
    assert all(step["outcome"] == -9 for step in killed)
    assert survived["outcome"] == 0
    for step in steps:
        # All or nothing: the booking and its line in the log.
        assert step["before"] in ({"bookings": 0, "log": 0}, {"bookings": 1, "log": 1}), step
        assert (step["again"], step["after"]) == (201, {"bookings": 1, "log": 1}), step
    kept = [step["before"]["bookings"] for step in steps]
    assert kept == sorted(kept), "once it is committed, it stays"
    assert len(killed) >= 14, "six statements and a commit, before and after each"
    assert kept[-2:] == [1, 1], "killed after the commit, before the answer: it is there"
