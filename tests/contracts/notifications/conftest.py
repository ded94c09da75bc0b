from tests.kit.databases import database, database_url, postgres_server

__all__ = ["database", "database_url", "postgres_server"]
