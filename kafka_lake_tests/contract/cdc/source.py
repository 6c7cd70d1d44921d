"""A database table of many types, and what its applications do to it, by chance."""

import random
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg2
from psycopg2.extras import Json, register_uuid

from kafka_lake.common.server_process import HOST
from kafka_lake.local_stack.postgres import Owner

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
_LONG = 20_000
_AT_MOST_OPEN = 4

register_uuid()


class Source:
    """The table, and connections to it.

    Args:
        port: Of the database.
        owner: Of the database.
        seed: Of what happens.
    """

    def __init__(self, port: int, owner: Owner, seed: int) -> None:
        told = {"user": owner.user, "password": owner.password, "dbname": owner.database}
        self._connect: Callable[[], Any] = lambda: psycopg2.connect(host=HOST, port=port, **told)
        self._chance = random.Random(seed)
        self._ids: set[int] = set()
        self._next = 0

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

    def happen(self, changes: int) -> None:
        """Let transactions change the table, several at a time, each keys of its own; some are rolled back."""
        open_ones: list[tuple[Any, set[int], set[int], set[int]]] = []
        try:
            while changes > 0 or open_ones:
                if changes > 0 and (not open_ones or (len(open_ones) < _AT_MOST_OPEN and self._chance.random() < 0.2)):
                    open_ones.append((self._connect(), set(), set(), set()))
                one = self._chance.choice(open_ones)
                if changes > 0 and self._chance.random() < 0.8:
                    others = set[int]().union(*(each[1] for each in open_ones if each is not one))
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
