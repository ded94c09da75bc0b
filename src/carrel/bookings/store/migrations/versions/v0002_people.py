"""People, their sessions, errands and tokens, and what was used once."""

import sqlalchemy as sa
from alembic import op

from carrel.bookings.store.tables import Instant

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "people",
        sa.Column("person", sa.String(320), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("granted", sa.String(32)),
        sa.Column("last_seen_at", Instant),
        sa.PrimaryKeyConstraint("person", name="pk_people"),
    )
    op.create_table(
        "sessions",
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("person", sa.String(320), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("roles", sa.JSON, nullable=False),
        sa.Column("how", sa.String(32), nullable=False),
        sa.Column("began_at", Instant, nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("secret_hash", name="pk_sessions"),
    )
    op.create_index("ix_sessions_person", "sessions", ["person"])
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_table(
        "errands",
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("facts", sa.JSON, nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("secret_hash", name="pk_errands"),
    )
    op.create_index("ix_errands_expires_at", "errands", ["expires_at"])
    op.create_table(
        "used",
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("secret_hash", name="pk_used"),
    )
    op.create_index("ix_used_expires_at", "used", ["expires_at"])
    op.create_table(
        "tokens",
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("person", sa.String(320), nullable=False),
        sa.Column("label", sa.String(255), nullable=False),
        sa.Column("how", sa.String(32), nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("roles", sa.JSON, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.Column("last_used_at", Instant),
        sa.Column("revoked_at", Instant),
        sa.PrimaryKeyConstraint("secret_hash", name="pk_tokens"),
        sa.UniqueConstraint("person", "id", name="uq_tokens_person_id"),
    )
