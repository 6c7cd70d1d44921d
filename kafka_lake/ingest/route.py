"""Which records a route takes: one condition on a field, a header or by SQL. Plain data, and declared only here."""

from dataclasses import dataclass
from typing import Literal

Otherwise = Literal["table", "dead_letter", "ignore"]


@dataclass(frozen=True)
class When:
    """The condition of a route. One of ``field``, ``header`` and ``sql`` is set.

    Args:
        field: Field of a JSON value; a dot leads into an object. Its text is compared, as JSON has it.
        header: Name of a header; of several by that name, the last one counts. Its bytes are compared as text.
        sql: SQL condition on the record's columns: key, value, headers, partition, offset, timestamp.
        values: Of ``field`` or ``header``: the texts that are meant.
    """

    field: str | None = None
    header: str | None = None
    sql: str | None = None
    values: tuple[str, ...] = ()

    @property
    def source(self) -> tuple[str, str]:
        """Return what is compared: its kind and its name. Conditions on the same source read it once."""
        if self.field is not None:
            return "field", self.field
        if self.header is not None:
            return "header", self.header
        return "sql", str(self.sql)

    def __str__(self) -> str:
        """Return the condition as the end of a sentence about records.

        >>> str(When(field="type", values=("click", "view"))), str(When(sql="key is null"))
        ("with field type 'click' or 'view'", 'for which key is null')
        """
        kind, name = self.source
        return f"for which {name}" if kind == "sql" else f"with {kind} {name} {' or '.join(map(repr, self.values))}"
