from tests.integration.bookings.conftest import opened, with_tables

__all__ = ["opened", "with_tables"]
