"""What a history looks like: its columns, and what their values are compared by. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode.columns import nullable_all
from kafka_lake.ingest.decode.rows import CHANGE, DELETED, EVENT, VALID_FROM, VALID_TO, is_counted
from kafka_lake.ingest.keyed.keys import Keys, quoted

_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_AS_JSON = {"ignoreNullFields": "false", "timestampFormat": _MICROSECONDS, "timestampNTZFormat": _MICROSECONDS}


@dataclass(frozen=True)
class Shape:
    """What a history looks like.

    Args:
        keys: Tell rows apart, and changes older from newer.
        track: Columns whose changes make a version; all if there are none.
        may_lack: Columns that a change may leave as they are.
        is_partial: Whether what no change has told is null; if not, a change that leaves it out can't be applied.
        ids: Field ids of the table's columns by their names.
    """

    keys: Keys
    table: T.StructType
    track: tuple[str, ...] = ()
    may_lack: tuple[str, ...] = ()
    is_partial: bool = False
    ids: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def columns(self) -> T.StructType:
        """The table's columns, each of which is null in some rows."""
        columns = nullable_all(self.table)
        assert isinstance(columns, T.StructType)
        return columns

    @property
    def values(self) -> tuple[str, ...]:
        """The columns that are the row's, not those that tell of its change."""
        others = (self.keys.metadata, CHANGE, DELETED, VALID_FROM, VALID_TO, EVENT)
        return tuple(each.name for each in self.table if each.name not in others)

    @property
    def tracked(self) -> tuple[str, ...]:
        """The columns whose changes make a version."""
        return self.track or self.values

    @property
    def has_one_order(self) -> bool:
        """Return whether one column tells the order."""
        return len(self.keys.order_by) == 1 and not self.keys.has_envelope

    @property
    def order_column(self) -> str | None:
        """The column that says itself from when on a version counts; None if that is a time."""
        name = self.keys.order_by[0] if self.has_one_order else None
        return name if name is not None and is_counted(self.table[name].dataType) else None

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
