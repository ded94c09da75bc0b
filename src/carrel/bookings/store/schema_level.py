"""Brings the tables of a database to the level of this program, and says whether an older program may use newer tables.

A level is the number of the last migration. Within a minor version migrations only add (`migrations.OLDEST_LEVELS`), so
a program of an older level runs on newer tables: after `helm rollback`, and while replicas are replaced one by one. The
database records the oldest level whose programs may use it: an older program cannot know what was changed later.
"""

import logging

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, delete, insert, inspect, select

from carrel import __version__
from carrel.bookings.records import StoreUnavailable
from carrel.bookings.store.migrations import OLDEST_LEVELS
from carrel.bookings.store.tables import bookings, schema_levels

log = logging.getLogger(__name__)

DEVELOPMENT = "its tables were made by a development version of Carrel, before 0.1.0; delete it, or name another one"


def bring_up_to_date(connection: Connection) -> None:
    """Raises `StoreUnavailable` if the tables are newer, and this program may not use them."""
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs each step at every start
    if _is_of_a_development_version(connection):
        raise StoreUnavailable(DEVELOPMENT)
    config = _config(connection)
    scripts = ScriptDirectory.from_config(config)
    level = MigrationContext.configure(connection).get_current_revision() or ""
    if level in {"", *(each.revision for each in scripts.walk_revisions())}:
        command.upgrade(config, "head")
        _record_oldest(connection)
        return
    known, oldest = scripts.get_current_head() or "", _recorded_oldest(connection) or level
    if known < oldest:
        # It would write into tables that mean something else.
        raise StoreUnavailable(
            f"its tables have level {level}, made by a newer version of Carrel, and need a program that knows "
            f"level {oldest}; this one knows {known}. Install the newer version again, or restore the backup "
            "from before the upgrade"
        )
    log.warning("newer_tables level=%s oldest=%s known=%s", level, oldest, known)


def _is_of_a_development_version(connection: Connection) -> bool:
    """Whether the tables are from before 0.1.0, when their names still changed."""
    found = inspect(connection)
    return found.has_table(bookings.name) and bookings.c.gpus.name not in {
        column["name"] for column in found.get_columns(bookings.name)
    }


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", "carrel.bookings.store:migrations")
    config.attributes["connection"] = connection
    return config


def _recorded_oldest(connection: Connection) -> str | None:
    """Return the oldest level whose programs may use the tables. Without one, it is their own."""
    is_recorded = inspect(connection).has_table(schema_levels.name)
    return connection.execute(select(schema_levels.c.oldest)).scalar() if is_recorded else None


def _record_oldest(connection: Connection) -> None:
    oldest = OLDEST_LEVELS[__version__.rpartition(".")[0]]
    if connection.execute(select(schema_levels.c.oldest)).scalars().all() != [oldest]:
        connection.execute(delete(schema_levels))
        connection.execute(insert(schema_levels).values(oldest=oldest))
