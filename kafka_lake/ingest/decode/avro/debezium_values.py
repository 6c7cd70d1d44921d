"""Values that Debezium writes as text, or as a record, and that are days, times and decimals."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode.avro.decimals import is_number, scaled_decimal
from kafka_lake.ingest.decode.avro.value import FIRST_MICROS, LAST_MICROS, Value, avro_field

ZONED_TIMESTAMP, ISO_TIMESTAMP = "io.debezium.time.ZonedTimestamp", "io.debezium.time.IsoTimestamp"
ISO_DATE, ISO_TIME = "io.debezium.time.IsoDate", "io.debezium.time.IsoTime"
VARIABLE_SCALE_DECIMAL = "io.debezium.data.VariableScaleDecimal"

_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
_NO_YEAR = "0000"


def text_value(name: str) -> Value | None:
    """Return how text of a type of Debezium's is read; None for other types.

    What is no day or time of the years 1 to 9999, `infinity` for instance, makes the record malformed.
    """
    found = _TEXTS.get(name)
    if found is None:
        return None
    kind, pattern, build = found

    def is_one(raw: Column) -> list[Column]:
        value = build(raw)
        holds = F.rlike(raw, F.lit(rf"^{pattern}\z")) & ~raw.startswith(_NO_YEAR) & value.isNotNull()
        if isinstance(kind, T.TimestampType):
            holds &= F.unix_micros(value).between(FIRST_MICROS, LAST_MICROS)
        return [raw.isNull() | F.coalesce(holds, F.lit(False))]

    return Value("string", kind, build, is_one, texts=lambda raw, _: [raw])


def variable_scale_decimal(name: str) -> Value:
    """Return how a decimal is read that tells its scale: as text, all its digits.

    Args:
        name: A name for its record that no other type has.
    """
    fields = [avro_field("scale", "int"), avro_field("value", "bytes")]
    avro: Any = {"type": "record", "name": name, "fields": fields}
    return Value(
        avro,
        T.StringType(),
        lambda raw: scaled_decimal(raw.getField("value"), raw.getField("scale")),
        lambda raw: [is_number(raw.getField("value"))],
        loops=True,
    )


def _without_zone(raw: Column) -> Column:
    # A type that has no zone is written with a Z all the same.
    return F.rtrim(raw, F.lit("Z"))


_TEXTS: dict[str, tuple[T.DataType, str, Callable[[Column], Column]]] = {
    ZONED_TIMESTAMP: (
        T.TimestampType(),
        f"{_DAY}T{_CLOCK}(Z|[+-][0-9]{{2}}:[0-9]{{2}})",
        lambda raw: raw.try_cast("timestamp"),
    ),
    ISO_TIMESTAMP: (
        T.TimestampNTZType(),
        f"{_DAY}T{_CLOCK}Z?",
        lambda raw: _without_zone(raw).try_cast("timestamp_ntz"),
    ),
    ISO_DATE: (T.DateType(), f"{_DAY}Z?", lambda raw: _without_zone(raw).try_cast("date")),
    ISO_TIME: (T.StringType(), f"{_CLOCK}Z?", _without_zone),
}
TEXTS = tuple(_TEXTS)
"""The types of Debezium's that are text."""
