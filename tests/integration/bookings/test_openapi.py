"""The OpenAPI document is true: every request that it allows is answered without a 5xx, in the documented form."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from carrel.bookings.app import fastapi_app
from carrel.bookings.store.database import Database
from carrel.http.serving import Address, serving
from tests.kit.booking import ADMIN, opened_on
from tests.kit.eventually import LIMIT_S

CHECKED = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


class Served:
    """The service on a loopback port, in a thread with a loop of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self.url = self.token = ""

    async def _serve(self) -> None:
        database = Database(f"sqlite:///{self._folder}/carrel.db")
        await database.migrate()
        opened = opened_on(database)
        self.token = (await opened.caller(ADMIN)).token
        async with serving(opened.app, Address()) as self.url:
            self._is_up.set()
            await self._stop.wait()
        await database.aclose()

    def __enter__(self) -> "Served":
        self._thread.start()
        assert self._is_up.wait(LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        self._loop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("openapi")) as served:
        yield served


document = fastapi_app(opened_on(Database("sqlite:///never-opened.db")).service).openapi()
operations = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]


@pytest.fixture(scope="module")
def schema() -> BaseSchema:
    return schemathesis.openapi.from_dict(document)


@pytest.mark.parametrize("operation", operations)
@given(data=st.data())
@settings(max_examples=max(8, settings().max_examples // 12), suppress_health_check=list(HealthCheck))
def test_every_request_that_the_document_allows_is_answered_as_documented(
    operation: str, schema: BaseSchema, served: Served, data: st.DataObject
) -> None:
    method, path = operation.split()
    case = data.draw(schema[path][method].as_strategy())
    headers = {"Authorization": f"Bearer {served.token}"}
    case.call_and_validate(base_url=served.url, headers=headers, checks=CHECKED)


def test_every_request_body_in_the_document_has_an_example() -> None:
    sent = [name for name in document["components"]["schemas"] if name.endswith("In") and name != "CancelIn"]

    assert sorted(sent) == [
        *("BookingIn", "ChangesIn", "GivenBookingIn", "GroupListIn", "GroupPersonIn", "ImportIn", "MaintenanceIn"),
        *("MessagesIn", "RemovalIn", "TrialIn"),
    ]
    assert all(document["components"]["schemas"][name]["examples"] for name in sent)
