"""`carrel booking` as a process: on a cluster and on a file, killed, restarted, ended, and with bad settings."""

import asyncio
import contextlib
import signal
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from carrel.bookings.mirror import BookingMirror
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRecord
from carrel.bookings.rules import Booking
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.configuration.schema import BookingRules
from carrel.dialects.booking_objects import BOOKINGS
from carrel.ids import BookingId
from kubernetes_in_memory.http_server import serve
from kubernetes_in_memory.messages import Api, HttpResponse, RequestLike
from tests.contracts.backends import eventually
from tests.integration.scheduling.test_process import Process, carrel_process
from tests.kit.booking import FakeInventory
from tests.kit.configuration import config_file
from tests.kit.gpus import A6000, a_node
from tests.kit.lab import a_lab

TOKEN = "known to this test only"
GPUS = """
nodes:
  - name: n1
    gpus: [{count: 2, model: NVIDIA-RTX-A6000, memoryMiB: 49140}]
"""


async def get(url: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        is_json = answer.content_type == "application/json"
        return answer.status, await (answer.json() if is_json else answer.text())


async def ask_as_maia(url: str, user: str, days: int = 0) -> tuple[int, Any]:
    body: dict[str, Any] = {"user_email": user, "namespace": "lab", "token": TOKEN}
    if days:
        start = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        times = [f"{moment:%Y-%m-%d %H:%M:%S}" for moment in (start, start + timedelta(days=days))]
        body["booking"] = {"gpu": A6000, "starting_time": times[0], "ending_time": times[1]}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/maia-api/gpu-schedulability/", json=body) as a:
        return a.status, await a.json()


async def opened(process: Process) -> str:
    return (await process.wait_line(r"listening url=(\S+)"))[1]


async def test_an_acknowledged_booking_survives_kill_9_and_a_restart(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "gpus.yaml").write_text(GPUS)
    options = ("booking", "--port", "0", "--inventory", str(tmp_path / "gpus.yaml"), "--database", database_url)
    variables = {"CARREL_MAIA_TOKEN": TOKEN}
    async with (
        carrel_process(*options, environment=variables) as first,
        carrel_process(*options, environment=variables) as second,
    ):
        one, other = await asyncio.gather(opened(first), opened(second))  # one makes the tables, the other waits
        assert await ask_as_maia(one, "ada@lab.org", days=2) == (200, {"message": "Booking created successfully"})
        first.running.kill()
        status, told = await ask_as_maia(other, "ada@lab.org", days=2)
        assert (status, "You may have 1 planned booking" in told["error"]) == (400, True)
        second.running.send_signal(signal.SIGTERM)
        code, said = await second.wait_end()
        assert (code, said.splitlines()[-1].endswith("INFO stopped")) == (0, True)
        assert TOKEN not in said
    async with carrel_process(*options, environment=variables) as third:
        assert (await ask_as_maia(await opened(third), "ada@lab.org", days=2))[0] == 400


async def test_the_gpus_are_those_that_the_cluster_reports(tmp_path: Path) -> None:
    node = a_node("n1", gpus=2, model=A6000)
    async with a_lab([node], in_real_time=True) as lab, serve(lab.api) as server, carrel_process(
        *("booking", "--server", server.url, "--port", "0", "--database", f"sqlite:///{tmp_path}/carrel.db")
    ) as process:  # fmt: skip
        url = await opened(process)

        async def is_ready() -> bool:
            return (await get(f"{url}/readyz"))[0] == 200

        await eventually(is_ready)
        assert await get(f"{url}/maia-api/gpu-stats/") == (200, {"gpu": {A6000: 2}, "gpu_allocations": {}})


async def test_beside_bookings_elsewhere_it_writes_no_booking_into_the_cluster(tmp_path: Path) -> None:
    async with a_lab([], in_real_time=True) as lab, serve(lab.api) as server, carrel_process(
        *("booking", "--server", server.url, "--port", "0", "--database", f"sqlite:///{tmp_path}/carrel.db"),
        environment={"CARREL_BOOKINGS_ELSEWHERE": "https://maia.example", "CARREL_MAIA_TOKEN": TOKEN},
    ) as process:  # fmt: skip
        url = await opened(process)
        status, told = await ask_as_maia(url, "ada@lab.org", days=2)
        _, metrics = await get(f"{url}/metrics")
    assert (status, told["code"]) == (404, "booked-elsewhere")
    assert "carrel_booking_mirror_age_seconds 0.0" in metrics, "it compares nothing"


class ADayBehind:
    """An API server whose clock is a day behind this machine's: for it, our processes are a day ahead."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def send(self, request: RequestLike, /) -> HttpResponse:
        answer = await self._api.send(request)
        date = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
        return HttpResponse(answer.status, answer.body, {**answer.headers, "date": date}, answer.stream)


async def test_a_replica_whose_clock_is_a_day_ahead_keeps_what_runs_by_the_api_servers_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn, "Config", partial(uvicorn.Config, date_header=False))  # the API sets the header here
    yesterday, hour = datetime.now(UTC) - timedelta(days=1), timedelta(hours=1)
    database = Database(f"sqlite:///{tmp_path}/carrel.db")
    await database.migrate()
    store = SqlBookings(database)
    async with a_lab([], in_real_time=True, has_booker=False) as lab, contextlib.aclosing(database):
        async with store.writing() as writing:
            for id in ("mirrored", "new"):
                booking = Booking(BookingId(id), f"{id}@lab.org", A6000, yesterday - hour, yesterday + hour)
                await writing.add(BookingRecord(booking, yesterday, f"{id}@lab.org"))
        right = BookingQueries(store, FakeInventory(), BookingRules(), UTC, lambda: yesterday)
        await BookingMirror(lab.client, right).write("mirrored")
        await lab.book("eve@lab.org", name="forged")

        async def objects() -> set[str]:
            return {each.metadata.name for each in (await lab.client.list(BOOKINGS)).items}

        async def is_compared() -> bool:
            return (found := await objects()) >= {"new"} and "forged" not in found

        async with serve(ADayBehind(lab.api)) as server, carrel_process(
            *("booking", "--server", server.url, "--port", "0", "--database", f"sqlite:///{tmp_path}/carrel.db")
        ) as process:  # fmt: skip
            await process.wait_line("clock_skew seconds=86")
            await eventually(is_compared)
            assert await objects() == {"mirrored", "new"}


async def test_all_mistakes_in_the_settings_are_listed_at_once(tmp_path: Path) -> None:
    gpus = tmp_path / "gpus.yaml"
    gpus.write_text(GPUS)
    async with carrel_process(
        *("booking", "--inventory", str(gpus), "--config", config_file(tmp_path), "--port", "0"),
        *("--database", f"sqlite:///{tmp_path}/carrel.db", "--dev", "--bind-address", "0.0.0.0"),
        environment={"CARREL_MAIA_TOKEN": "secret-token"},
    ) as process:
        code, said = await process.wait_end()

    assert code == 2
    for word in ("CARREL_MAIA_TOKEN", "--dev"):
        assert word in said
    assert "secret-token" not in said


async def test_mistakes_name_the_variable_and_the_token_must_be_ascii() -> None:
    async with carrel_process("booking", environment={"CARREL_PORT": "many"}) as process:
        assert "✗ CARREL_PORT of carrel booking" in (said := (await process.wait_end())[1]), said
        assert "[" not in said.partition("env var")[2].partition(")")[0]
    async with carrel_process("booking", environment={"CARREL_MAIA_TOKEN": "tökén"}) as process:
        code, said = await process.wait_end()
    assert (code, "CARREL_MAIA_TOKEN must be ASCII" in said, "tökén" in said) == (2, True, False)


async def test_without_its_database_it_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "gpus.yaml").write_text(GPUS)
    async with carrel_process(
        *("booking", "--port", "0", "--inventory", str(tmp_path / "gpus.yaml")),
        *("--database", f"sqlite:///{tmp_path}/no/such/folder/carrel.db"),
    ) as process:
        code, said = await process.wait_end()

    assert (code, "The database cannot be used" in said, "Traceback" in said) == (6, True, False)
