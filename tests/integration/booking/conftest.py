from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.booking import Opened, a_booking_service, opened_on
from tests.kit.databases import Database, database, database_url, postgres_server

__all__ = ["database", "database_url", "on_both", "opened", "postgres_server"]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    """On SQLite: what the two databases promise alike is in tests/contracts/bookings."""
    async with a_booking_service(f"sqlite:///{tmp_path}/carrel.db") as opened:
        yield opened


@pytest.fixture
async def on_both(database: Database) -> Opened:
    return opened_on(database)
