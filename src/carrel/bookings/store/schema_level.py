"""Brings the tables of a database to the level of this program, and says whether an older program may use newer tables.

A level is the number of the last migration. Within a minor version migrations only add (`migrations.OLDEST_LEVELS`), so
a program of an older level runs on newer tables: after `helm rollback`, and while replicas are replaced one by one. The
database records the oldest level whose programs may use it: an older program cannot know what was changed later.
"""

import logging
from dataclasses import dataclass

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


@dataclass(frozen=True)
class NewerTables:
    """A newer Carrel made them."""

    level: str
    """The level of the tables."""
    oldest: str
    """The oldest level whose programs may use them."""
    known: str
    """The level of this program."""

    @property
    def can_be_used(self) -> bool:
        return self.known >= self.oldest

    def __str__(self) -> str:
        return (
            f"its tables have level {self.level}, made by a newer version of Carrel, and need a program that knows "
            f"level {self.oldest}; this one knows {self.known}. Install the newer version again, or restore the backup "
            "from before the upgrade"
        )


def bring_up_to_date(connection: Connection) -> None:
    """Raises `StoreUnavailable` if the tables are newer, and this program may not use them."""
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs each step at every start
    if _is_of_a_development_version(connection):
        raise StoreUnavailable(DEVELOPMENT)
    config = _config(connection)
    newer = _newer_tables(connection, config)
    if newer is None:
        command.upgrade(config, "head")
        _record_oldest(connection)
    elif newer.can_be_used:
        log.warning("newer_tables level=%s oldest=%s known=%s", newer.level, newer.oldest, newer.known)
    else:
        # Not one that is too old: it would write into tables that mean something else.
        raise StoreUnavailable(str(newer))


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


def _newer_tables(connection: Connection, config: Config) -> NewerTables | None:
    """None if this program knows their level, or if there are none yet."""
    scripts = ScriptDirectory.from_config(config)
    level = MigrationContext.configure(connection).get_current_revision() or ""
    known = scripts.get_current_head() or ""
    if level in {"", *(each.revision for each in scripts.walk_revisions())}:
        return None
    # Tables that record nothing are used by programs of their own level only.
    records = inspect(connection).has_table(schema_levels.name)
    oldest = connection.execute(select(schema_levels.c.oldest)).scalar() if records else None
    return NewerTables(level, oldest or level, known)


def _record_oldest(connection: Connection) -> None:
    oldest = OLDEST_LEVELS[__version__.rpartition(".")[0]]
    if connection.execute(select(schema_levels.c.oldest)).scalars().all() != [oldest]:
        connection.execute(delete(schema_levels))
        connection.execute(insert(schema_levels).values(oldest=oldest))
