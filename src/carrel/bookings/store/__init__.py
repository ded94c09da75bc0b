"""The database behind the booking service: SQLite in a file, or PostgreSQL, with the same promises.

database.py    the connection, its transactions, and bringing the tables up to date
tables.py      the tables
migrations/    how they came to be
bookings.py    the BookingStore port
people.py      the People port: sessions, errands, tokens, grants
letters.py     the Outbox port
"""
