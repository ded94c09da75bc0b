"""Runs the migrations on the connection that alembic was given, inside its transaction."""

from alembic import context

from carrel.bookings.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
