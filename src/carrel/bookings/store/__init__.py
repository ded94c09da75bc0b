"""The database behind the booking service: SQLite in a file, or PostgreSQL, with the same guarantees.

Reading order:

    database        the connection, its transactions
    schema_level    bringing the tables up to date, and which programs may use them
    tables          the tables
    migrations/     how the tables are made
    bookings        implements `BookingStore`
    people          implements `People`: sessions, pending logins, tokens, roles
    outbox          implements `Outbox`: notifications
"""
