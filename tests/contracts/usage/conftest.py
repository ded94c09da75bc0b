import pytest

from carrel.bookings.store.database import Database
from carrel.bookings.store.usage import SqlUsage
from tests.kit.databases import database, database_url, postgres_server

__all__ = ["database", "database_url", "postgres_server", "usage"]


@pytest.fixture
def usage(database: Database) -> SqlUsage:
    return SqlUsage(database)
