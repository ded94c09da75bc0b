"""Which programs may use the tables."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "schema_levels",
        sa.Column("oldest", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("oldest", name="pk_schema_levels"),
    )
