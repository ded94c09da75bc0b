"""The tables as they are now. `migrations` makes them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""Constraints have names, so that a later migration can change them on every database."""


class Instant(TypeDecorator[datetime]):
    """A point in time, in UTC: SQLite has no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None]:
        """Without the intermediate steps: a timeline reads thousands of these, and SQLite stores them as text."""
        return _instant_of_text if dialect.name == "sqlite" else _in_utc


def _instant_of_text(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(f"{text}+00:00")


def _in_utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)


SERIAL = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite numbers rows by itself only in an INTEGER column."""

bookings = Table(
    "bookings",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("person", String(320), nullable=False),
    Column("model", String(255), nullable=False),
    Column("starts_at", Instant, nullable=False),
    Column("planned_end", Instant, nullable=False),
    Column("ends_at", Instant, nullable=False),  # the planned end, or when it was cancelled
    Column("gpus", Integer, nullable=False),
    Column("share", Boolean, nullable=False),
    Column("cancelled_at", Instant),
    Column("namespace", String(255), nullable=False),
    Column("note", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("created_by", String(320), nullable=False),
    Column("version", Integer, nullable=False),
    Column("once_key", String(255)),
    Column("once_fingerprint", String(64)),
    Column("group_name", String(255), nullable=False, server_default=""),  # empty: a person's own
    CheckConstraint("starts_at < planned_end", name="end_after_start"),
    CheckConstraint("ends_at <= planned_end", name="ends_as_planned_or_before"),
    CheckConstraint("gpus >= 1", name="some_gpus"),
    UniqueConstraint("created_by", "once_key"),
    Index(None, "model", "ends_at"),
    Index(None, "person", "ends_at"),
    Index(None, "group_name", "ends_at"),
    Index(None, "starts_at", "id"),
)

maintenance = Table(
    "maintenance",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("model", String(255), nullable=False),  # empty: nodes and single GPUs are named
    Column("starts_at", Instant, nullable=False),
    Column("ends_at", Instant, nullable=False),
    Column("gpus", Integer, nullable=False),  # of the model, whichever
    Column("why", Text, nullable=False),
    Column("created_by", String(320), nullable=False),
    Column("nodes", JSON, nullable=False, server_default="[]"),
    Column("single_gpus", JSON, nullable=False, server_default="{}"),  # UUID → what it was called
    CheckConstraint("starts_at < ends_at", name="end_after_start"),
    CheckConstraint("(model = '') = (gpus = 0) and gpus >= 0", name="some_gpus"),
)

log = Table(
    "log",
    metadata,
    Column("number", SERIAL, primary_key=True, autoincrement=True),
    Column("at", Instant, nullable=False),
    Column("actor", String(320), nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", String(320), nullable=False),
    Column("booking", String(64), nullable=False),
    Column("why", Text, nullable=False),
    Column("details", JSON, nullable=False),
    Index(None, "subject", "number"),
    sqlite_autoincrement=True,  # a number is never used again
)

feeds = Table(
    "feeds",
    metadata,
    Column("person", String(320), primary_key=True),
    Column("secret_hash", String(64), nullable=False),
    UniqueConstraint("secret_hash"),
)

people = Table(
    "people",
    metadata,
    Column("person", String(320), primary_key=True),
    Column("name", String(255), nullable=False),
    Column("granted", String(32)),
    Column("zone", String(64)),  # the IANA zone that they chose; null: the lab's
    Column("messages", JSON),  # how they want to be told things; null: they have chosen nothing
    Column("last_seen_at", Instant),
)

group_people = Table(
    "group_people",
    metadata,
    Column("group_name", String(255), primary_key=True),
    Column("person", String(320), primary_key=True),
    Column("is_manager", Boolean, nullable=False),
    Index(None, "person"),
)

seen_groups = Table(
    "seen_groups",
    metadata,
    Column("person", String(320), primary_key=True),
    Column("source", String(32), primary_key=True),
    Column("group_name", String(255), primary_key=True),
    Column("seen_at", Instant, nullable=False),
    Index(None, "group_name"),
    Index(None, "seen_at"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("secret_hash", String(64), primary_key=True),
    Column("person", String(320), nullable=False),
    Column("name", String(255), nullable=False),
    Column("roles", JSON, nullable=False),
    Column("how", String(32), nullable=False),
    Column("began_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Index(None, "person"),
    Index(None, "expires_at"),
)

pending_logins = Table(
    "pending_logins",
    metadata,
    Column("secret_hash", String(64), primary_key=True),
    Column("facts", JSON, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Index(None, "expires_at"),
)

used = Table(
    "used",
    metadata,
    Column("secret_hash", String(64), primary_key=True),
    Column("expires_at", Instant, nullable=False),
    Index(None, "expires_at"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("secret_hash", String(64), primary_key=True),
    Column("id", String(64), nullable=False),
    Column("person", String(320), nullable=False),
    Column("label", String(255), nullable=False),
    Column("how", String(32), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("roles", JSON, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("last_used_at", Instant),
    Column("revoked_at", Instant),
    UniqueConstraint("person", "id"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("channel", String(32), primary_key=True),
    Column("occasion", String(32), nullable=False),
    Column("person", String(320), nullable=False),
    Column("at", Instant, nullable=False),
    Column("booking", String(64), nullable=False),
    Column("facts", JSON, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("due_at", Instant),  # None when it was delivered or given up
    Column("done_at", Instant),
    Column("held_until", Instant),  # the morning for which it waits for others, to be one message
    Column("failure", Text, nullable=False),
    Index(None, "due_at"),
    Index(None, "done_at"),
)

buttons = Table(
    "buttons",
    metadata,
    Column("secret_hash", String(64), primary_key=True),
    Column("act", String(32), nullable=False),
    Column("person", String(320), nullable=False),
    Column("notification", String(255), nullable=False),
    Column("booking", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("used_at", Instant),
    Index(None, "person"),
    Index(None, "expires_at"),
)

marks = Table(
    "marks",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("number", BigInteger, nullable=False),  # how far the log was read; 1: it is set
)

usage_models = Table(
    "usage_models",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("model", String(255), nullable=False),
)
"""Sums name models, GPUs and people by numbers: there are millions of them."""

usage_gpus = Table(
    "usage_gpus",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("gpu", String(255), nullable=False),
    Column("model_id", Integer, nullable=False),
    UniqueConstraint("gpu", "model_id"),
)

usage_people = Table(
    "usage_people",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("person", String(320), nullable=False),  # empty: nobody, or somebody whose name was forgotten
    Index(None, "person"),
)

UNTIERED, BOOKED, OPPORTUNISTIC = 0, 1, 2
"""The tiers in sums of usage."""


def _number(name: str) -> Column[int]:
    return Column(name, Integer, primary_key=True, autoincrement=False)


def _sums_of_usage(kind: type[Integer] = BigInteger) -> tuple[Column[int], ...]:
    return (
        Column("tier", SmallInteger, primary_key=True, autoincrement=False),
        Column("held_ms", kind, nullable=False),
        Column("known_ms", kind, nullable=False),
        Column("active_ms", kind, nullable=False),
    )


usage_hours = Table(
    "usage_hours",
    metadata,
    _number("hour"),  # its begin, in minutes since 1970
    _number("gpu_id"),
    _number("person_id"),
    *_sums_of_usage(Integer),
    sqlite_with_rowid=False,
)

usage_days = Table(
    "usage_days",
    metadata,
    _number("day"),  # `date.toordinal` of a day of the lab
    _number("gpu_id"),
    _number("person_id"),
    *_sums_of_usage(Integer),
    sqlite_with_rowid=False,
)

usage_model_days = Table(
    "usage_model_days",
    metadata,
    _number("day"),
    _number("model_id"),
    *_sums_of_usage(),
    sqlite_with_rowid=False,
)
"""The days once more without the GPUs, and the months: few rows, so that a year of models or of people is read at
once."""

usage_person_days = Table(
    "usage_person_days",
    metadata,
    _number("day"),
    _number("person_id"),
    _number("model_id"),
    *_sums_of_usage(),
    sqlite_with_rowid=False,
)

usage_person_months = Table(
    "usage_person_months",
    metadata,
    _number("month"),  # 12 times the year, and the months of it that are over
    _number("person_id"),
    _number("model_id"),
    *_sums_of_usage(),
    sqlite_with_rowid=False,
)

usage_progress = Table(
    "usage_progress",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),  # one row
    Column("counted_since", Instant, nullable=False),
    Column("counted_until", Instant, nullable=False),
    Column("totals", JSON, nullable=False),  # of each GPU, those of the last report that is counted
)

usage_gaps = Table(
    "usage_gaps",
    metadata,
    Column("starts_at", Instant, primary_key=True),
    Column("ends_at", Instant, nullable=False),
)

schema_levels = Table(
    "schema_levels",
    metadata,
    Column("oldest", String(32), primary_key=True),  # one row: the oldest level whose programs may use these tables
)
