"""A database table of many types, and what its applications do to it, by chance."""

import json
import random
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg2
from psycopg2.extras import Json, register_uuid

from kafka_lake.common.processes import HOST
from kafka_lake.devstack.sources import Owner

COLUMNS = {
    "id": "bigint primary key",
    "name": "text",
    # Long enough to be stored outside of its row: an update of another column doesn't send it.
    "big": "text",
    "n": "int",
    "price": "numeric(20,5)",
    "at": "timestamptz",
    "local": "timestamp",
    "day": "date",
    "ok": "boolean",
    "ratio": "double precision",
    "doc": "jsonb",
    "tags": "text[]",
    "uid": "uuid",
    "bytes": "bytea",
}
NAME = "customers"
DECLARED = (
    "id bigint not null, name string, big string, n int, price decimal(20,5), at timestamp, local timestamp_ntz, "
    "day date, ok boolean, ratio double, doc string, tags array<string>, uid string, bytes binary, added string"
)
"""The columns of the Iceberg table, and one that comes later."""

_LONG = 20_000
_AT_MOST_OPEN = 4

register_uuid()


class Source:
    """The table, and connections to it.

    Args:
        port: Of the database.
        owner: Of the database.
        seed: Of what happens.
        before: The keys of its rows are above. Others may change rows of the table that are not its own.
        pause: Seconds from one change to the next, while transactions are open.

    Attributes:
        before: The keys of its rows are above.
        address: Of the database, with its owner's password.
    """

    def __init__(self, port: int, owner: Owner, seed: int, before: int = 0, pause: float = 0.0) -> None:
        reported = {"user": owner.user, "password": owner.password, "dbname": owner.database}
        self.address = f"postgresql://{owner.user}:{owner.password}@{HOST}:{port}/{owner.database}"
        self._connect: Callable[[], Any] = lambda: psycopg2.connect(host=HOST, port=port, **reported)
        self._chance = random.Random(seed)
        self._ids: set[int] = set()
        self.before = self._next = before
        self._pause = pause

    def create(self) -> None:
        """Create the table. Its log has whole rows: of a key that changes, PostgreSQL else tells no long value."""
        self.execute(f"CREATE TABLE {NAME} ({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())})")
        self.execute(f"ALTER TABLE {NAME} REPLICA IDENTITY FULL")

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own, and return its rows, if it has any."""
        with closing(self._connect()) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, in the order of their keys."""
        names = [name for (name,) in self.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position", NAME
        )]  # fmt: skip
        quoted = ", ".join(f'"{name}"' for name in names)
        return [dict(zip(names, row, strict=True)) for row in self.execute(f"SELECT {quoted} FROM {NAME} ORDER BY id")]

    def plain_rows(self) -> list[dict[str, Any]]:
        """Return the rows in the form that a table's have; JSON is the database's own, since Python's null is none."""
        docs = self.execute(f"SELECT doc::text FROM {NAME} ORDER BY id")
        return [plain({**row, "doc": doc}) for row, (doc,) in zip(self.rows(), docs, strict=True)]

    def find(self, end: int) -> None:
        """Learn which rows are there, after a transaction of which nobody knows how it ended.

        Args:
            end: Keys of other sources begin here.
        """
        rows = self.execute(f"SELECT id FROM {NAME} WHERE id > %s AND id < %s", self.before, end)
        self._ids = {key for (key,) in rows}

    def happen(self, changes: int) -> None:
        """Let transactions change the table, several at a time, each keys of its own; some are rolled back."""
        open_ones: list[tuple[Any, set[int], set[int], set[int]]] = []
        try:
            while changes > 0 or open_ones:
                if changes > 0 and (not open_ones or (len(open_ones) < _AT_MOST_OPEN and self._chance.random() < 0.2)):
                    open_ones.append((self._connect(), set(), set(), set()))
                time.sleep(self._pause)
                one = self._chance.choice(open_ones)
                if changes > 0 and self._chance.random() < 0.8:
                    others = set[int]().union(*(item[1] for item in open_ones if item is not one))
                    self._change(*one, others)
                    changes -= 1
                    continue
                open_ones.remove(one)
                self._end(*one)
        finally:
            for connection, *_ in open_ones:
                connection.close()

    def _change(self, connection: Any, touched: set[int], came: set[int], went: set[int], others: set[int]) -> None:
        """Change a row that no other open transaction has touched."""
        free = sorted(((self._ids - others) | came) - went)
        what = self._chance.choices(("insert", "update", "delete", "move"), (4, 8, 2, 1))[0] if free else "insert"
        with connection.cursor() as cursor:
            if what == "insert":
                self._next += 1
                self._insert(cursor, self._next)
                came.add(self._next)
                touched.add(self._next)
                return
            key = self._chance.choice(free)
            touched.add(key)
            if what == "update":
                names = self._chance.sample([*COLUMNS][1:], self._chance.randint(1, 4))
                sets = ", ".join(f'"{name}" = %s' for name in names)
                cursor.execute(f"UPDATE {NAME} SET {sets} WHERE id = %s", [*map(self._value, names), key])
                return
            if what == "delete":
                cursor.execute(f"DELETE FROM {NAME} WHERE id = %s", (key,))
            else:
                self._next += 1
                cursor.execute(f"UPDATE {NAME} SET id = %s WHERE id = %s", (self._next, key))
                came.add(self._next)
                touched.add(self._next)
            came.discard(key)
            went.add(key)

    def _end(self, connection: Any, _touched: set[int], came: set[int], went: set[int]) -> None:
        with closing(connection):
            if self._chance.random() < 0.15:
                connection.rollback()
                return
            connection.commit()
        self._ids = (self._ids | came) - went

    def _insert(self, cursor: Any, key: int) -> None:
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        values = [key, *(self._value(name) for name in [*COLUMNS][1:])]
        cursor.execute(f"INSERT INTO {NAME} ({names}) VALUES ({', '.join(['%s'] * len(values))})", values)

    def _value(self, name: str) -> Any:
        """Return any value of a column, null now and then."""
        chance = self._chance
        if chance.random() < 0.1:
            return None
        if name == "name":
            return chance.choice(["Zoë", "O'Hara", '"quoted"', "", "line\nbreak", "\\", "名前", "null", "{}"])
        if name == "big":
            return "".join(chance.choices("abcdefghij", k=_LONG))
        if name == "n":
            return chance.choice([0, -1, 2**31 - 1, -(2**31), chance.randrange(1000)])
        if name == "price":
            return chance.choice(["0", "-0.00001", "999999999999999.99999", f"{chance.randrange(10**6)}.50"])
        if name == "at":
            return chance.choice(["2026-03-29T01:59:59.999999+00", "1969-12-31T23:59:59.5Z", "2026-11-24T10:00:00+05"])
        if name == "local":
            return chance.choice(["2026-03-29 02:30:00", "1999-12-31 23:59:59.999999"])
        if name == "day":
            return chance.choice(["2026-02-28", "1900-01-01", "2100-12-31"])
        if name == "ok":
            return chance.random() < 0.5
        if name == "ratio":
            return chance.choice([0.1, -1e300, 5e-324, 1 / 3, chance.random()])
        if name == "doc":
            return Json(chance.choice([{"a": [1, {"b": None}]}, [], "text", 1.10, {"ü": "é"}]))
        if name == "tags":
            return chance.choice([[], ["a"], ["x,y", 'q"', ""], [None, "b"]])
        if name == "uid":
            return f"{chance.getrandbits(128):032x}"
        return chance.randbytes(chance.choice([0, 1, 300]))


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of either side in Python's own types; of JSON what it means."""
    return {name: _plain(name, value) for name, value in row.items()}


def _plain(name: str, value: Any) -> Any:
    if name == "doc":
        return value if value is None else json.dumps(json.loads(value) if isinstance(value, str) else value)
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, UUID):
        return str(value)
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value
