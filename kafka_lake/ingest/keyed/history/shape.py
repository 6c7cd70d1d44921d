"""What the history of a keyed table looks like: its columns, and what their values are compared by. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode.json.columns import nullable_all
from kafka_lake.ingest.decode.rows import CHANGE, DELETED, EVENT, VALID_FROM, VALID_TO
from kafka_lake.ingest.keyed.keys import Keys, quoted

EVENT_TYPE = T.StructType([T.StructField("kept", T.ArrayType(T.IntegerType())), T.StructField("at", T.TimestampType())])
"""What else an event needs so that it can be placed anew.

``kept``: field ids of the columns that it left as they were; null for a row that was in the table before its history
began. ``at``: when it happened, if an envelope tells.
"""

_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_AS_JSON = {"ignoreNullFields": "false", "timestampFormat": _MICROSECONDS, "timestampNTZFormat": _MICROSECONDS}
_PLAIN = (T.NumericType, T.DateType, T.TimestampType, T.TimestampNTZType)


@dataclass(frozen=True)
class Shape:
    """What a topic's history looks like.

    Args:
        keys: Tell rows apart, and changes older from newer.
        table: Columns of the topic's table.
        track: Columns whose changes make a version; all if there are none.
        may_lack: Columns that a change may leave as they are.
        ids: Field ids of the history's columns by their names.
    """

    keys: Keys
    table: T.StructType
    track: tuple[str, ...] = ()
    may_lack: tuple[str, ...] = ()
    ids: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def columns(self) -> T.StructType:
        """The history's columns."""
        rows = nullable_all(T.StructType([each for each in self.table if each.name != DELETED]))
        assert isinstance(rows, T.StructType)
        valid = self.valid_type
        added = {VALID_FROM: valid, VALID_TO: valid, DELETED: T.BooleanType(), EVENT: EVENT_TYPE}
        return T.StructType([*rows.fields, *(T.StructField(name, kind) for name, kind in added.items())])

    @property
    def values(self) -> tuple[str, ...]:
        """The columns that are the row's, not those that tell of its change."""
        others = (self.keys.metadata, CHANGE, DELETED)
        return tuple(each.name for each in self.table if each.name not in others)

    @property
    def tracked(self) -> tuple[str, ...]:
        """The columns whose changes make a version."""
        return self.track or self.values

    @property
    def order_column(self) -> str | None:
        """The column that says itself from when on a version counts; None if that is a time."""
        if self.keys.has_envelope or len(self.keys.order_by) != 1:
            return None
        name = self.keys.order_by[0]
        return name if isinstance(self.table[name].dataType, _PLAIN) else None

    @property
    def valid_type(self) -> T.DataType:
        """The type of ``valid_from`` and ``valid_to``."""
        return T.TimestampType() if self.order_column is None else self.table[self.order_column].dataType

    @property
    def key_names(self) -> list[str]:
        """The names that the key's values have while events are put in order."""
        return [f"__kafka_lake_key_{number}" for number in range(max(1, len(self.keys.columns)))]

    def same_event(self, one: str, other: str) -> str:
        """Return the condition that two rows are the same event: of one key, and from one place in Kafka."""
        metadata = quoted(self.keys.metadata)
        place = [f"{one}.{metadata}.`{name}` = {other}.{metadata}.`{name}`" for name in ("partition", "offset")]
        topic = f"{one}.{metadata}.`topic_id` <=> {other}.{metadata}.`topic_id`"
        return " AND ".join([self.keys.same(one, other), *place, topic])

    def compared(self, names: tuple[str, ...], of: str | None = None) -> Column:
        """Return one value by which those of some columns can be compared.

        Args:
            names: Of the history's columns.
            of: The struct column that has them; the row itself if None.
        """
        before = f"{of}." if of else ""
        return F.struct(
            *[_comparable(F.col(f"{before}{quoted(name)}"), self.columns[name].dataType).alias(name) for name in names]
        )


def _comparable(value: Column, kind: T.DataType) -> Column:
    """Return what a value can be compared by: Spark compares neither maps nor variants, and maps have no order."""
    if not _is_loose(kind):
        return value
    if isinstance(kind, T.MapType):
        entries = F.transform(
            F.array_sort(F.map_keys(value)),
            lambda key: F.struct(key.alias("key"), _comparable(value[key], kind.valueType).alias("value")),
        )
        return F.when(value.isNotNull(), entries)
    if isinstance(kind, T.StructType):
        fields = [_comparable(value.getField(f.name), f.dataType).alias(f"_{number}") for number, f in enumerate(kind)]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, T.ArrayType):
        return F.transform(value, lambda each: _comparable(each, kind.elementType))
    return F.to_json(F.struct(value.alias("v")), _AS_JSON)


def _is_loose(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return any(_is_loose(each.dataType) for each in kind)
    if isinstance(kind, T.ArrayType):
        return _is_loose(kind.elementType)
    return isinstance(kind, T.MapType | T.VariantType)
