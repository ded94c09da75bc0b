"""Two releases of `carrel booking` on one database: while replicas are replaced one by one, and after a rollback."""

import os
from pathlib import Path

from tests.integration.bookings.test_process import GPUS, TOKEN, ask_as_maia, opened
from tests.integration.scheduling.test_process import carrel_process
from tests.kit.next_release import next_level, next_release, present_level

BOOKED = (200, {"message": "Booking created successfully"})


async def test_an_older_release_serves_beside_a_newer_one_and_after_it(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "gpus.yaml").write_text(GPUS)
    newer = {"PYTHONPATH": f"{next_release(tmp_path / 'next')}:{os.environ.get('PYTHONPATH', '')}"}
    options = ("booking", "--port", "0", "--inventory", str(tmp_path / "gpus.yaml"), "--database", database_url)
    token = {"CARREL_MAIA_TOKEN": TOKEN}
    async with carrel_process(*options, environment=token) as before:
        before_url = await opened(before)
        assert await ask_as_maia(before_url, "ada@lab.org", days=2) == BOOKED
        async with carrel_process(*options, environment=token | newer) as after:
            after_url = await opened(after)
            assert await ask_as_maia(after_url, "bob@lab.org", days=2) == BOOKED
            # Both GPUs are booked now, and each release knows the booking of the other.
            for url in (before_url, after_url):
                status, told = await ask_as_maia(url, "eve@lab.org", days=2)
                assert (status, "GPU" in told["error"]) == (400, True), told
    async with carrel_process(*options, environment=token) as back:
        told = await back.wait_line(r"newer_tables level=(\d+) oldest=\d+ known=(\d+)")
        assert told.groups() == (next_level(), present_level())
        assert (await ask_as_maia(await opened(back), "eve@lab.org", days=2))[0] == 400
