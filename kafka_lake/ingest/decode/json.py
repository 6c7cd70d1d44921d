"""JSON values: `from_json` in the JVM, strict: all but whole JSON objects of the columns' types are dead letters."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

CORRUPT = "__kafka_lake_corrupt"
_DOUBLE_DIGITS = 15
_LONG_DIGITS = 18


def decode_json(records: DataFrame, schema: T.StructType) -> DataFrame:
    """Add ``decoded``, ``error_class`` and ``error_message`` to records whose value is JSON.

    Args:
        records: What `read` gave; null values (tombstones) get all three as null.
        schema: Columns to look for. Fields that it doesn't name are left aside; not-null columns must be there.

    Returns:
        The records with three more columns, one row for each, none lost.
    """
    text = F.col("value").cast("string")
    optional = T.StructType([T.StructField(f.name, nullable_all(f.dataType)) for f in schema])
    parsing = T.StructType([*optional.fields, T.StructField(CORRUPT, T.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    frame = records.withColumn("parsed", F.from_json(text, parsing, options))
    # from_json stops at the end of the first object and would lose what follows it: `{"id": 1} {"id": 2}`.
    alone = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
    not_an_object = (
        ~F.is_valid_utf8(text) | ~F.rlike(text, F.lit(r"(?s)^\s*\{.*\}\s*$")) | ~F.coalesce(alone, F.lit(False))
    )
    corrupt = F.col("parsed").isNull() | F.col(f"parsed.{CORRUPT}").isNotNull()
    missing = [f.name for f in schema if not f.nullable]
    error_class: Column = (
        F.when(F.col("value").isNull(), F.lit(None).cast("string"))
        .when(not_an_object, F.lit("not_json"))
        .when(corrupt & F.try_parse_json(text).isNull(), F.lit("not_json"))
        .when(corrupt, F.lit("wrong_type"))
    )
    for name in missing:
        error_class = error_class.when(_field("parsed", name).isNull(), F.lit("null_in_required_column"))
    message = (
        F.when(F.col("error_class") == "not_json", F.lit("The value is not one JSON object in UTF-8."))
        .when(F.col("error_class") == "wrong_type", F.lit(f"A field doesn't fit its column: {_short(optional)}."))
        .when(
            F.col("error_class") == "null_in_required_column",
            F.lit(f"One of the required columns {', '.join(missing)} is null or missing."),
        )
    )
    return frame.select(
        *records.columns,
        F.struct(*[_field("parsed", f.name).alias(f.name) for f in schema]).alias("decoded"),
        error_class.alias("error_class"),
    ).withColumn("error_message", message)


def observed_schema() -> Column:
    """Return an aggregate over records that tells, as text, the schema that their JSON values have together."""
    return F.schema_of_variant_agg(F.try_parse_json(F.col("value").cast("string")))


def schema_from_observation(observed: str | None) -> T.StructType:
    """Turn what `observed_schema` found into columns.

    Whole numbers are bigint, or decimal(38,0) beyond 64 bits; fractions are double as far as a double holds their
    digits, else text; fields of mixed types keep their JSON as text; fields that were always null are left out until
    they are not.

    Args:
        spark: Parses the type's text.
        observed: For example ``OBJECT<id: BIGINT, tags: ARRAY<STRING>>``; None or another type if no value was
            an object.

    Returns:
        The columns, all nullable, in alphabetical order; none if no object was seen.
    """
    if not observed or not observed.startswith("OBJECT<"):
        return T.StructType([])
    parsed = T._parse_datatype_string(observed.replace("OBJECT<>", "VOID").replace("OBJECT<", "STRUCT<"))
    column = _column_type(parsed)
    return column if isinstance(column, T.StructType) else T.StructType([])


def _column_type(seen: T.DataType) -> T.DataType | None:
    if isinstance(seen, T.StructType):
        fields = [(f.name, _column_type(f.dataType)) for f in seen.fields]
        kept = [T.StructField(name, kind) for name, kind in fields if kind is not None]
        return T.StructType(kept) if kept else None
    if isinstance(seen, T.ArrayType):
        element = _column_type(seen.elementType)
        return T.ArrayType(element) if element is not None else None
    if isinstance(seen, T.NullType):
        return None
    if isinstance(seen, T.VariantType):
        return T.StringType()
    if isinstance(seen, T.DecimalType):
        if seen.scale == 0:
            return T.LongType() if seen.precision <= _LONG_DIGITS else T.DecimalType(38, 0)
        return T.DoubleType() if seen.precision <= _DOUBLE_DIGITS else T.StringType()
    return seen


def nullable_all(kind: T.DataType) -> T.DataType:
    """Return the type with every nested field, element and value nullable: JSON promises nothing."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, nullable_all(f.dataType)) for f in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(nullable_all(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, nullable_all(kind.valueType))
    return kind


def _field(struct: str, name: str) -> Column:
    return F.col(struct).getField(name)


def _short(schema: T.StructType) -> str:
    text = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in schema)
    return text if len(text) <= 500 else text[:497] + "..."
