"""A real table, in the words of the oracle: its columns, which fields feed them, and its rows."""

from typing import Any

from pyiceberg import types as I
from pyiceberg.table import Table

from kafka_lake.catalog.tables import sources_of
from kafka_lake_tests.fuzz.adapter import instants
from kafka_lake_tests.fuzz.oracle import Column, Row

METADATA = "_kafka"
_NAMES: dict[type[Any], str] = {
    I.BooleanType: "boolean",
    I.IntegerType: "int",
    I.LongType: "long",
    I.FloatType: "float",
    I.DoubleType: "double",
    I.StringType: "string",
    I.BinaryType: "binary",
    I.DateType: "date",
    I.TimestampType: "timestamp_ntz",
    I.TimestamptzType: "timestamp",
}


def columns_of(table: Table) -> tuple[Column, ...]:
    """Return a table's columns but the metadata's."""
    sources = sources_of(table)

    def kind(found: Any, path: str) -> Any:
        if isinstance(found, I.StructType):
            return "struct", struct(found.fields, path)
        if isinstance(found, I.ListType):
            return "list", kind(found.element_type, f"{path}.element")
        if isinstance(found, I.MapType):
            return "map", kind(found.value_type, f"{path}.value")
        if isinstance(found, I.DecimalType):
            return "decimal", found.precision, found.scale
        return _NAMES[type(found)]

    def struct(fields: Any, path: str) -> tuple[Column, ...]:
        paths = [(field, f"{path}.{field.name}" if path else field.name) for field in fields]
        return tuple(Column(f.name, kind(f.field_type, at), (sources.get(at, f.name),)) for f, at in paths)

    return struct([field for field in table.schema().fields if field.name != METADATA], "")


def rows_of(read: Any) -> dict[tuple[int, int], Row]:
    """Return rows by partition and offset, of a table that some reader gave as Arrow's."""
    found: dict[tuple[int, int], Row] = {}
    for batch in read.to_batches():
        for row in instants(batch.to_struct_array()).to_pylist():
            place = row[METADATA]["partition"], row[METADATA]["offset"]
            assert place not in found, f"{place} occurs twice"
            found[place] = Row({name: value for name, value in row.items() if name != METADATA})
    return found


def as_pyiceberg_reads(value: Any) -> Any:
    """Return a value without the difference between null and an empty list.

    PyIceberg 0.12 gives an empty list where the file holds null in a column of lists of structs. Spark, DuckDB and
    pyarrow read such files as they are.
    """
    if isinstance(value, dict):
        return {name: as_pyiceberg_reads(element) for name, element in value.items()}
    if isinstance(value, list):
        return [as_pyiceberg_reads(element) for element in value] or None
    return tuple(map(as_pyiceberg_reads, value)) if isinstance(value, tuple) else value
