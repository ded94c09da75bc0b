"""Letters to people, and how far the log was read for them."""

import sqlalchemy as sa
from alembic import op

from carrel.bookings.store.tables import Instant

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "letters",
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("way", sa.String(32), nullable=False),
        sa.Column("occasion", sa.String(32), nullable=False),
        sa.Column("person", sa.String(320), nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.Column("booking", sa.String(64), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("facts", sa.JSON, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("due_at", Instant),
        sa.Column("done_at", Instant),
        sa.Column("failure", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", "way", name="pk_letters"),
    )
    op.create_index("ix_letters_due_at", "letters", ["due_at"])
    op.create_index("ix_letters_done_at", "letters", ["done_at"])
    op.create_table(
        "marks",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_marks"),
    )
