"""Types of columns as tasks describe them, in Arrow, as Spark's."""

import pyarrow as pa
from pyspark.sql import types as T

from kafka_lake.spark.interop import from_arrow_type


def spark_type(kind: pa.DataType) -> T.DataType:
    """Return a type, all of it nullable; what fields have in their metadata, a comment, stays."""
    if pa.types.is_struct(kind):
        return T.StructType([_column(field) for field in kind])
    if pa.types.is_list(kind):
        return T.ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return T.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def _column(field: pa.Field) -> T.StructField:
    metadata = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
    return T.StructField(field.name, spark_type(field.type), metadata=metadata)
