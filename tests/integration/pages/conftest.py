from tests.integration.booking.conftest import opened, with_tables

__all__ = ["opened", "with_tables"]
