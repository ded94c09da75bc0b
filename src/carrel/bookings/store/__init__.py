"""The database behind the booking service: SQLite in a file, or PostgreSQL, with the same guarantees.

Reading order:

    database        the connection, its transactions, and which programs may use the tables
    tables          the tables
    migrations/     how the tables are made
    bookings        implements `BookingStore`
    people          sessions, pending logins, tokens, roles
    outbox          implements `Outbox`: notifications
    buttons         the buttons in messages
    usage           what GPUs were held and used for
"""
