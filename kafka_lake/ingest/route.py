"""Which records a route takes: by a field, a header, a schema or SQL. Plain data, and declared only here."""

import re
from dataclasses import dataclass
from typing import Literal

Match = Literal["first", "all"]
Unmatched = Literal["dead_letter", "ignore", "fail"]
RouteByKind = Literal["field", "header", "schema_name", "source_table"]

LONGEST_VALUE = 200
"""Characters of a value that may have a table of its own."""


@dataclass(frozen=True)
class When:
    """The condition of a route. One of ``field``, ``header``, ``schema``, ``source_table`` and ``sql`` is set.

    Args:
        field: Field of a JSON value; a dot leads into an object. Its text is compared, as JSON has it.
        header: Name of a header; of several by that name, the last one counts. Its bytes are compared as text.
        sql: SQL condition on the record's columns: key, value, headers, partition, offset, timestamp.
        values: Of ``field``, ``header`` or ``source_table``: the texts that are meant.
        schema: Names of the value's schema in the registry; ``*`` stands for any text.
        source_table: The envelope whose changes tell from which table of the source they are.
    """

    field: str | None = None
    header: str | None = None
    sql: str | None = None
    values: tuple[str, ...] = ()
    schema: tuple[str, ...] = ()
    source_table: str | None = None

    @property
    def source(self) -> tuple[str, str]:
        """Return what is compared: its kind and its name. Conditions on the same source read it once."""
        if self.field is not None:
            return "field", self.field
        if self.header is not None:
            return "header", self.header
        if self.source_table is not None:
            return "source_table", self.source_table
        if self.schema:
            return "schema", ""
        return "sql", str(self.sql)

    def means(self, schema: str) -> bool:
        """Return whether a schema of this name is meant.

        >>> [When(schema=("shop.*", "Order")).means(name) for name in ("shop.Order", "shop_Order", "Order", "Orders")]
        [True, False, True, False]
        """
        return any(_glob(each).fullmatch(schema) for each in self.schema)

    def __str__(self) -> str:
        """Return the condition as the end of a sentence about records.

        >>> str(When(field="type", values=("click", "view"))), str(When(sql="key is null"))
        ("with field type 'click' or 'view'", 'for which key is null')
        """
        kind, name = self.source
        if kind == "schema":
            return f"with schema {' or '.join(map(repr, self.schema))}"
        if kind == "source_table":
            return f"of the source's table {' or '.join(map(repr, self.values))}"
        return f"for which {name}" if kind == "sql" else f"with {kind} {name} {' or '.join(map(repr, self.values))}"


def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
