"""Bookings, maintenance windows, the log and the feeds."""

import sqlalchemy as sa
from alembic import op

from carrel.bookings.store.tables import SERIAL, Instant

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "bookings",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("person", sa.String(320), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("starts_at", Instant, nullable=False),
        sa.Column("planned_end", Instant, nullable=False),
        sa.Column("ends_at", Instant, nullable=False),
        sa.Column("cards", sa.Integer, nullable=False),
        sa.Column("share", sa.Boolean, nullable=False),
        sa.Column("cancelled_at", Instant),
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("created_by", sa.String(320), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("once_key", sa.String(255)),
        sa.Column("once_fingerprint", sa.String(64)),
        sa.PrimaryKeyConstraint("id", name="pk_bookings"),
        sa.CheckConstraint("starts_at < planned_end", name="end_after_start"),
        sa.CheckConstraint("ends_at <= planned_end", name="ends_as_planned_or_before"),
        sa.CheckConstraint("cards >= 1", name="some_cards"),
        sa.UniqueConstraint("created_by", "once_key", name="uq_bookings_created_by_once_key"),
    )
    op.create_index("ix_bookings_model_ends_at", "bookings", ["model", "ends_at"])
    op.create_index("ix_bookings_person_ends_at", "bookings", ["person", "ends_at"])
    op.create_index("ix_bookings_starts_at_id", "bookings", ["starts_at", "id"])
    op.create_table(
        "maintenance",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("starts_at", Instant, nullable=False),
        sa.Column("ends_at", Instant, nullable=False),
        sa.Column("cards", sa.Integer, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("created_by", sa.String(320), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_maintenance"),
        sa.CheckConstraint("starts_at < ends_at", name="end_after_start"),
        sa.CheckConstraint("cards >= 1", name="some_cards"),
    )
    op.create_table(
        "log",
        sa.Column("number", SERIAL, nullable=False, autoincrement=True),
        sa.Column("at", Instant, nullable=False),
        sa.Column("actor", sa.String(320), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(320), nullable=False),
        sa.Column("booking", sa.String(64), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_log"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_log_subject_number", "log", ["subject", "number"])
    op.create_table(
        "feeds",
        sa.Column("person", sa.String(320), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("person", name="pk_feeds"),
        sa.UniqueConstraint("secret_hash", name="uq_feeds_secret_hash"),
    )
