"""An older program on the tables of a newer one, on SQLite and on PostgreSQL: the migrations of a minor
version only add.
"""

import logging

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from carrel import __version__
from carrel.bookings.records import Query, StoreUnavailable
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.migrations import OLDEST_LEVELS
from tests.contracts.bookings.kept import keep, names
from tests.contracts.bookings.test_store import NOW, a_record
from tests.kit.postgres import new_database
from tests.kit.table_changes import more_than_added, tables_of

NEWER = (
    "ALTER TABLE bookings ADD COLUMN colour VARCHAR(32) NOT NULL DEFAULT 'blue'",
    "CREATE TABLE colours (name VARCHAR(32) PRIMARY KEY)",
    "UPDATE alembic_version SET version_num = '9999'",
)
"""What a newer program has done."""


async def run(database: Database, *statements: str) -> None:
    async with database.writing() as connection:
        for each in statements:
            await connection.execute(text(each))


async def test_tables_to_which_a_newer_version_only_added_are_used(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await run(database, *NEWER)

    with caplog.at_level(logging.WARNING):
        await database.migrate()

    assert f"newer_tables level=9999 oldest=0001 known={levels()[-1]}" in caplog.text
    store = SqlBookings(database)
    await keep(store, a_record("b1"))
    async with store.reading() as reading:
        assert names(await reading.search(Query(), NOW)) == ["b1"]


async def test_tables_of_a_development_version_are_not_used(database: Database) -> None:
    await run(database, "ALTER TABLE bookings RENAME COLUMN gpus TO gpu_count", *NEWER[-1:])

    with pytest.raises(StoreUnavailable, match="made by a development version"):
        await database.migrate()


async def test_an_older_program_leaves_on_record_who_may_use_the_tables(database: Database) -> None:
    await run(database, *NEWER, "UPDATE schema_levels SET oldest = '0000'")

    await database.migrate()

    async with database.reading() as connection:
        assert (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar() == "9999"
        assert (await connection.execute(text("SELECT oldest FROM schema_levels"))).scalars().all() == ["0000"]


@pytest.mark.parametrize(
    "record",
    [
        pytest.param("UPDATE schema_levels SET oldest = '9998'", id="which mean something else since level 9998"),
        pytest.param("DELETE FROM schema_levels", id="which do not say who may use them"),
        pytest.param("DROP TABLE schema_levels", id="which cannot say who may use them"),
    ],
)
async def test_newer_tables_are_not_touched(database: Database, record: str) -> None:
    await run(database, *NEWER, record)

    with pytest.raises(StoreUnavailable) as refused:
        await database.migrate()

    assert "its tables have level 9999, made by a newer version of Carrel" in str(refused.value)
    helps = f"this one knows {levels()[-1]}. Install the newer version again, or restore the backup"
    assert helps in str(refused.value)


async def test_the_newer_program_finds_its_tables_as_it_left_them(database: Database) -> None:
    """After the older one: what it did not know is there, and what it wrote has the defaults."""
    await run(database, *NEWER)
    await database.migrate()
    await keep(SqlBookings(database), a_record("b1"))

    async with database.reading() as connection:
        found = (await connection.execute(text("SELECT id, colour FROM bookings"))).all()
    assert [tuple(each) for each in found] == [("b1", "blue")]


# --- the rule for migrations ----------------------------------------------------------------------


def config(connection: Connection) -> Config:
    found = Config()
    found.set_main_option("script_location", "carrel.bookings.store:migrations")
    found.attributes["connection"] = connection
    return found


def levels() -> list[str]:
    found = Config()
    found.set_main_option("script_location", "carrel.bookings.store:migrations")
    return sorted(each.revision for each in ScriptDirectory.from_config(found).walk_revisions())


def oldest_level() -> str:
    """Of this version. Without a line for it, nobody could go back to it."""
    return OLDEST_LEVELS[__version__.rpartition(".")[0]]


async def test_migrations_only_add_within_a_minor_version(database_url: str) -> None:
    database = Database(database_url)

    def added_only(connection: Connection) -> dict[str, list[str]]:
        command.upgrade(config(connection), oldest_level())
        found = {}
        for level in [each for each in levels() if each > oldest_level()]:
            before = tables_of(connection)
            command.upgrade(config(connection), level)
            found[level] = more_than_added(before, tables_of(connection))
        return found

    async with database.writing() as connection:
        found = await connection.run_sync(added_only)
    await database.aclose()

    assert list(found) == [each for each in levels() if each > oldest_level()]
    assert not any(found.values()), f"{found}: this needs a new minor version, see OLDEST_LEVELS"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        pytest.param("DROP TABLE feeds", "feeds: the table is gone", id="a table is dropped"),
        pytest.param("ALTER TABLE bookings DROP COLUMN note", "bookings.note is gone", id="a column is dropped"),
        pytest.param(
            "ALTER TABLE bookings RENAME COLUMN gpus TO number", "bookings.gpus is gone", id="a column is renamed"
        ),
        pytest.param(
            "ALTER TABLE bookings ALTER COLUMN note TYPE VARCHAR(10)", "bookings.note was", id="a type is changed"
        ),
        pytest.param(
            "ALTER TABLE bookings ALTER COLUMN once_key SET NOT NULL",
            "bookings.once_key was",
            id="a column must be filled from now on",
        ),
        pytest.param(
            "ALTER TABLE bookings ADD COLUMN room VARCHAR(9) NOT NULL",
            "bookings.room must be filled",
            id="a new column must be filled",
        ),
        pytest.param(
            "CREATE UNIQUE INDEX one ON bookings (model)",
            "bookings: unique ['model'] is new",
            id="a row is refused that was taken before",
        ),
        pytest.param(
            "ALTER TABLE bookings ADD CONSTRAINT few CHECK (gpus < 9)",
            "bookings: check gpus < 9 is new",
            id="a value is refused that was taken before",
        ),
        pytest.param(
            "ALTER TABLE feeds DROP CONSTRAINT uq_feeds_secret_hash",
            "feeds: unique ['secret_hash'] is gone",
            id="a row is taken that was refused before",
        ),
    ],
)
async def test_what_does_not_only_add_is_noticed(postgres_server: str, change: str, sentence: str) -> None:
    database = Database(new_database(postgres_server))
    await database.migrate()
    async with database.writing() as connection:
        before = await connection.run_sync(tables_of)
        await connection.execute(text(change))
        found = more_than_added(before, await connection.run_sync(tables_of))
    await database.aclose()

    assert [each for each in found if each.startswith(sentence)], found
