"""How Spark reads an Avro type, and what is done with what it reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

Expression = Callable[[Column], Column]
Conditions = Callable[[Column], list[Column]]
Texts = Callable[[Column, bool], list[Column]]

FIRST_MICROS, LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Of the years 1 to 9999, since 1970 in UTC."""


@dataclass(frozen=True)
class Value:
    """How Spark shall read a type, and what must be done with what it reads.

    Args:
        avro: The type as `from_avro` gets it: of the same encoding as the writer's.
        type: What it becomes.
        build: Makes it of what `from_avro` gives; None if that is it already.
        checks: Conditions, never null, that hold for what isn't malformed.
        texts: Strings, and arrays of strings, that must be UTF-8. The argument is a value, or an array of such values
            if the second argument is true.
        loops: Whether `build`, `checks` or `texts` of a single value have lambdas.
        nests_text: Whether `texts` of an array of such values have lambdas.
        takes_bytes: Whether every value takes at least one byte.
    """

    avro: Any
    type: T.DataType
    build: Expression | None = None
    checks: Conditions | None = None
    texts: Texts | None = None
    loops: bool = False
    nests_text: bool = False
    takes_bytes: bool = True

    def built(self, raw: Column) -> Column:
        """Return the value as it shall be."""
        return raw if self.build is None else self.build(raw)

    def conditions(self, raw: Column) -> list[Column]:
        """Return all that must be true of a value that isn't malformed."""
        texts = [F.is_valid_utf8(F.concat_ws(",", *self.texts(raw, False)))] if self.texts else []
        return [*texts, *(self.checks(raw) if self.checks else [])]


NULL = Value("null", T.NullType(), takes_bytes=False)


def unless_null(condition: Column) -> Column:
    """Return a condition, true where it is null."""
    return F.coalesce(condition, F.lit(True))


def avro_field(name: str, kind: Any) -> dict[str, Any]:
    """Return a record's field in Avro's JSON."""
    return {"name": name, "type": kind}
