"""Bookings of groups: the group of a booking, the people whom an admin lists, and groups that were seen at sign-ins."""

import sqlalchemy as sa
from alembic import op

from carrel.bookings.store.tables import Instant

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("bookings", sa.Column("group_name", sa.String(255), nullable=False, server_default=""))
    op.create_index("ix_bookings_group_name_ends_at", "bookings", ["group_name", "ends_at"])
    op.create_table(
        "group_people",
        sa.Column("group_name", sa.String(255), nullable=False),
        sa.Column("person", sa.String(320), nullable=False),
        sa.Column("is_manager", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("group_name", "person", name="pk_group_people"),
    )
    op.create_index("ix_group_people_person", "group_people", ["person"])
    op.create_table(
        "seen_groups",
        sa.Column("person", sa.String(320), nullable=False),
        sa.Column("source", sa.String(32), nullable=False),
        sa.Column("group_name", sa.String(255), nullable=False),
        sa.Column("seen_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("person", "source", "group_name", name="pk_seen_groups"),
    )
    op.create_index("ix_seen_groups_group_name", "seen_groups", ["group_name"])
    op.create_index("ix_seen_groups_seen_at", "seen_groups", ["seen_at"])
