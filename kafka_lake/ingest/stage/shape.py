"""Shape: rows with the table's columns, matched by name at every depth. Spark's own casts match structs by position."""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.lake.catalog import quoted


def shaped(rows: DataFrame, target: T.StructType) -> DataFrame:
    """Return the rows with exactly the columns of a table.

    Args:
        rows: Columns that the table lacks are left out.
        target: The table's columns; those that the rows lack become null.
    """
    if rows.schema.simpleString() == target.simpleString():
        return rows
    return rows.select(*[_field(rows.schema, lambda name: F.col(quoted(name)), column) for column in target])


def _field(have: T.StructType, get: Any, column: T.StructField) -> Any:
    twin = next((field for field in have if field.name.lower() == column.name.lower()), None)
    value = (
        F.lit(None).cast(column.dataType) if twin is None else _value(get(twin.name), twin.dataType, column.dataType)
    )
    return value.alias(column.name)


def _value(value: Any, have: T.DataType, want: T.DataType) -> Any:
    if have.simpleString() == want.simpleString():
        return value
    if isinstance(have, T.StructType) and isinstance(want, T.StructType):
        whole = F.struct(*[_field(have, value.getField, column) for column in want])
        return F.when(value.isNotNull(), whole)
    if isinstance(have, T.ArrayType) and isinstance(want, T.ArrayType):
        return F.transform(value, lambda element: _value(element, have.elementType, want.elementType))
    if isinstance(have, T.MapType) and isinstance(want, T.MapType):
        return F.transform_values(value.cast(T.MapType(want.keyType, have.valueType)),
                                  lambda _, each: _value(each, have.valueType, want.valueType))  # fmt: skip
    return value.cast(want)
