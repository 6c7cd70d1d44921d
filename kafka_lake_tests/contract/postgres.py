"""A real PostgreSQL on 127.0.0.1, for catalogs, for Dagster's storage and as a source of changes."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from kafka_lake.common.processes import HOST
from kafka_lake.devstack.sources import EmbeddedPostgres, Owner


@contextmanager
def database(port: int, owner: Owner) -> Iterator[EmbeddedPostgres]:
    """Run a server with one database, which wants the password of who comes.

    Args:
        port: Where it listens.
        owner: Who owns the database.
    """
    with (
        tempfile.TemporaryDirectory(prefix="kafka-lake-postgres-") as folder,
        EmbeddedPostgres(Path(folder), owner, port) as server,
    ):
        yield server


def execute(port: int, owner: Owner, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement in a transaction of its own, and return its rows, if it has any."""
    reported = {"user": owner.user, "password": owner.password, "dbname": owner.database}
    with (
        closing(psycopg2.connect(host=HOST, port=port, **reported)) as connection,
        connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []
