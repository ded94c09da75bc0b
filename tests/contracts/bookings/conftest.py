import pytest

from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from tests.kit.databases import database, database_url, postgres_server

__all__ = ["database", "database_url", "postgres_server", "store"]


@pytest.fixture
def store(database: Database) -> SqlBookings:
    return SqlBookings(database)
