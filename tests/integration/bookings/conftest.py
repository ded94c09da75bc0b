import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.bookings.store.database import Database
from tests.kit.booking import ADMIN, MEMBER, OTHER, Caller, Opened, opened_on
from tests.kit.databases import database, database_url, postgres_server

__all__ = ["ada", "bob", "database", "database_url", "eva", "on_both", "opened", "postgres_server", "with_tables"]


@pytest.fixture(scope="session")
def with_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file whose tables are made, to be copied."""
    file = tmp_path_factory.mktemp("tables") / "carrel.db"

    async def make() -> None:
        database = Database(f"sqlite:///{file}")
        await database.migrate()
        await database.aclose()

    asyncio.run(make())
    return file


@pytest.fixture
async def opened(with_tables: Path, tmp_path: Path) -> AsyncIterator[Opened]:
    """On SQLite; what both databases guarantee is tested in tests/contracts/bookings."""
    database = Database(f"sqlite:///{shutil.copy(with_tables, tmp_path)}")
    yield opened_on(database)
    await database.aclose()


@pytest.fixture
async def on_both(database: Database) -> Opened:
    return opened_on(database)


@pytest.fixture
async def ada(opened: Opened) -> Caller:
    return await opened.caller(MEMBER)


@pytest.fixture
async def bob(opened: Opened) -> Caller:
    return await opened.caller(OTHER)


@pytest.fixture
async def eva(opened: Opened) -> Caller:
    """A lab admin."""
    return await opened.caller(ADMIN)
