"""All tables of the first release.

Until 0.1.0 is released, a table or a column is added in `tables` and nowhere else: there is no database to migrate.
With the release this step is written out, as alembic's autogenerate does it, and never changed again.
"""

from alembic import op

from carrel.bookings.store.tables import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
