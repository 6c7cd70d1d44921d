"""What decoding shall give: a table's value columns, and which field of a record feeds which of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import StructType
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from kafka_lake.lake.tables import schema_of

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Target:
    """Columns to decode into.

    Args:
        columns: Name, type, and whether null is allowed.
        sources: Path of a column → name of the field that feeds it, where the two differ. ``element`` and ``value``
            step into lists and maps, as in Iceberg.
        also: Path of a column → further names of fields that feed it: what it was called before a rename.
        exact: Paths of text columns that get JSON numbers of more digits than a double holds.
    """

    columns: T.StructType
    sources: Mapping[str, str] = field(default_factory=lambda: _NONE)
    also: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NONE)
    exact: frozenset[str] = frozenset()

    def feeds(self, path: str, column: str) -> Sequence[str]:
        """Return the names of the fields that feed a column, the first that is there counts.

        Args:
            path: The column's path.
            column: Its name, the last part of the path.
        """
        return [self.sources.get(path, column), *self.also.get(path, ())]

    def part(self, column: str) -> "Target":
        """Return what one column, a struct, shall be made of."""
        kind = self.columns[column].dataType
        assert isinstance(kind, T.StructType)
        return Target(kind, _under(self.sources, column), _under(self.also, column))

    def without(self, column: str) -> "Target":
        """Return this target without one of its columns."""
        kept = [f for f in self.columns if f.name != column]
        return replace(self, columns=T.StructType(kept))


def _under(paths: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    start = f"{column}."
    return {path.removeprefix(start): value for path, value in paths.items() if path.startswith(start)}


def iceberg_columns(columns: T.StructType) -> StructType:
    """Return Spark columns as Iceberg's, with fresh field ids."""
    return schema_of(to_arrow_schema(columns)).as_struct()


def spark_columns(columns: StructType) -> T.StructType:
    """Return Iceberg columns as Spark's."""
    arrow = schema_to_pyarrow(Schema(*columns.fields), include_field_ids=False)
    found: T.StructType = from_arrow_schema(arrow, prefer_timestamp_ntz=True)
    return found
