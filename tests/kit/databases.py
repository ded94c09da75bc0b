"""Both databases, for tests that hold on either: fixtures with an empty database."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.bookings.store.database import Database
from tests.kit.postgres import new_database, postgres

SERVER = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> str:
    """One for the whole run: otherwise each folder that imports this fixture would start one."""
    config = request.config
    if SERVER not in config.stash:
        stack = contextlib.ExitStack()
        config.stash[SERVER] = stack.enter_context(postgres())
        config.add_cleanup(stack.close)
    return config.stash[SERVER]


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "SQLite":
        return f"sqlite:///{tmp_path}/carrel.db"
    return new_database(request.getfixturevalue("postgres_server"))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """With its tables."""
    opened = Database(database_url)
    await opened.migrate()
    yield opened
    await opened.aclose()
