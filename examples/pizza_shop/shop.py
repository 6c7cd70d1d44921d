"""The pizza shop's database: two tables, and transactions that change them."""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from threading import Event
from typing import Any

import psycopg2

from kafka_lake.devstack.sources import CONFIRMED, SLOT, Owner

OWNER = Owner("pizza", "pizza", "shop")
KEYS = {"customers": ("phone",), "orders": ("order_id",)}
"""The key columns of the tables."""

_TABLES = """
CREATE TABLE customers (
    phone text PRIMARY KEY,
    name text NOT NULL,
    street text NOT NULL,
    points int NOT NULL
);
CREATE TABLE orders (
    order_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    phone text NOT NULL REFERENCES customers ON UPDATE CASCADE ON DELETE CASCADE,
    pizza text NOT NULL,
    price numeric(8,2) NOT NULL,
    status text NOT NULL,
    ordered_at timestamptz NOT NULL
);
"""
_FIRST_CUSTOMERS = 200
_FIRST_ORDERS = 300
_NAMES = ("Ada", "Blaise", "Grace", "Edsger", "Barbara", "Alan", "Zoë", "Konrad", "Hedy", "John", "Radia", "Leslie")
_STREETS = ("Oven Lane", "Basil Street", "Crust Road", "Mozzarella Square", "Olive Way", "Pepper Hill")
_PIZZAS = ("Margherita", "Marinara", "Funghi", "Diavola", "Quattro formaggi", "Prosciutto")


class Shop:
    """The shop's database.

    Attributes:
        happened: The number of transactions of each kind.
    """

    def __init__(self, url: str, seed: int | None = None) -> None:
        self._url = url
        self._chance = random.Random(seed)
        self.happened: Counter[str] = Counter()

    def open(self) -> bool:
        """Create the tables with their first rows, unless they are there."""
        if self.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'public' AND tablename = 'orders'"):
            return False
        with closing(psycopg2.connect(self._url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(_TABLES)
            for _ in range(_FIRST_CUSTOMERS):
                self._new_customer(cursor)
            for _ in range(_FIRST_ORDERS):
                self._order(cursor)
        return True

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own, and return its rows, if it has any."""
        with closing(psycopg2.connect(self._url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        with closing(psycopg2.connect(self._url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table}")
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def work(self, rate: float, stop: Event) -> None:
        """Run transactions until ``stop`` is set."""
        kinds: dict[str, tuple[int, Callable[[Any], None]]] = {
            "orders placed": (8, self._order),
            "orders delivered": (6, self._deliver),
            "orders cancelled": (2, self._cancel),
            "new customers": (2, self._new_customer),
            "customers moved": (2, self._move),
            "phone numbers changed": (1, self._change_phone),
            "customers left": (1, self._leave),
        }
        with closing(psycopg2.connect(self._url)) as connection:
            # First each kind once, then at random: even a short run has all of them.
            due = list(kinds)
            while not stop.wait(1 / rate):
                weights = [weight for weight, _ in kinds.values()]
                name = due.pop() if due else self._chance.choices(list(kinds), weights)[0]
                with connection, connection.cursor() as cursor:
                    kinds[name][1](cursor)
                self.happened[name] += 1

    def close_of_business(self) -> str:
        """Make a last change, and return the log's position before it."""
        ((before,),) = self.execute("SELECT pg_current_wal_insert_lsn()")
        with closing(psycopg2.connect(self._url)) as connection, connection, connection.cursor() as cursor:
            self._order(cursor)
        return str(before)

    def is_captured(self, position: str) -> bool:
        """Return whether Debezium has confirmed a change after a position: all changes before it are in Kafka."""
        return self.execute(CONFIRMED, position, SLOT) == [(True,)]

    def _order(self, cursor: Any) -> None:
        phone = self._any_phone(cursor)
        price = Decimal(self._chance.randrange(600, 2_000)).scaleb(-2)
        cursor.execute(
            "INSERT INTO orders (phone, pizza, price, status, ordered_at) VALUES (%s, %s, %s, 'baking', %s)",
            (phone, self._chance.choice(_PIZZAS), price, datetime.now(UTC)),
        )
        cursor.execute("UPDATE customers SET points = points + %s WHERE phone = %s", (int(price), phone))

    def _deliver(self, cursor: Any) -> None:
        cursor.execute(
            "UPDATE orders SET status = 'delivered' "
            "WHERE order_id = (SELECT min(order_id) FROM orders WHERE status = 'baking')"
        )

    def _cancel(self, cursor: Any) -> None:
        cursor.execute("DELETE FROM orders WHERE order_id = (SELECT max(order_id) FROM orders WHERE status = 'baking')")

    def _new_customer(self, cursor: Any) -> None:
        values = (self._new_phone(), self._chance.choice(_NAMES), self._address())
        cursor.execute("INSERT INTO customers VALUES (%s, %s, %s, 0) ON CONFLICT DO NOTHING", values)

    def _move(self, cursor: Any) -> None:
        phone = self._any_phone(cursor)
        cursor.execute("UPDATE customers SET street = %s WHERE phone = %s", (self._address(), phone))

    def _change_phone(self, cursor: Any) -> None:
        """Change a customer's key, and with it a column of the customer's orders."""
        phone = self._any_phone(cursor)
        cursor.execute("UPDATE customers SET phone = %s WHERE phone = %s", (self._new_phone(), phone))

    def _leave(self, cursor: Any) -> None:
        """Delete a customer, and with it the customer's orders."""
        cursor.execute("DELETE FROM customers WHERE phone = %s", (self._any_phone(cursor),))

    def _any_phone(self, cursor: Any) -> str:
        cursor.execute("SELECT phone FROM customers ORDER BY phone")
        phone: str = self._chance.choice(cursor.fetchall())[0]
        return phone

    def _new_phone(self) -> str:
        return f"555-{self._chance.randrange(10**7):07d}"

    def _address(self) -> str:
        return f"{self._chance.randint(1, 99)} {self._chance.choice(_STREETS)}"
