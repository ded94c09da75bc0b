"""Both databases, for tests that hold on either: a fixture gives the URL of an empty one."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from carrel.adapters.store.database import Database
from tests.kit.postgres import new_database, postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with postgres() as socket:
        yield socket


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
