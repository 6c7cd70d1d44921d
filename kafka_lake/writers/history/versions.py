"""History tables (SCD type 2): each change event is a row; `valid_from` and `valid_to` say when its version is valid.

The rows depend on all events of a key in their order, and not on the batches that the events came in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.cdc.task.change import DELETE
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.formats.columns import nullable_all
from kafka_lake.formats.rows import CHANGE, DELETED, EVENT, EVENT_TYPE, VALID_FROM, VALID_TO
from kafka_lake.quality.validation import ValidationResult
from kafka_lake.writers.upsert.change_events import no_names
from kafka_lake.writers.upsert.deduplicate import UNKNOWN, key_column, newest_before, with_order
from kafka_lake.writers.upsert.keys import EVENT_TIME, INTERNAL, OPERATION, UNCHANGED, KeyBounds, Keys
from kafka_lake.writers.upsert.merge import MergeCounts
from kafka_lake.writers.upsert.missing_values import MissingValue

STORED = f"{INTERNAL}stored"
"""The table's row of an event; null if the table has none."""
IN_BATCH = f"{INTERNAL}in_batch"
"""Whether an event is in the batch."""
IS_DUPLICATE = f"{INTERNAL}is_duplicate"
"""Whether the table has several rows of an event."""
IS_UNPLACED = f"{INTERNAL}is_unplaced"
"""Whether an event is a delete without an order, and no event of its key precedes it in its Kafka partition."""
_STORED_ROW, _BATCH_ROW, _ROW, _DECLARED, _PLACED, _ORDER = (
    f"{INTERNAL}{name}" for name in ("stored_row", "batch_row", "row", "declared", "placed", "order")
)
_TIME, _SPAN, _BEFORE, _SAME, _BEGAN, _NEXT = (
    f"{INTERNAL}{name}" for name in ("time", "span", "before", "same", "began", "next")
)
_PLACE = ("topic_id", "partition", "offset")
_EPOCH = "TIMESTAMP '1970-01-01 00:00:00Z'"
_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_JSON_OPTIONS = {"ignoreNullFields": "false", "timestampFormat": _MICROSECONDS, "timestampNTZFormat": _MICROSECONDS}


@dataclass(frozen=True)
class HistoryTable:
    """The columns of a history table.

    Args:
        track: Columns whose changes begin a version; empty for all.
        nullable: Columns that an event may leave unchanged.
        is_partial: Whether unknown values are null; otherwise an event that lacks one is a dead letter.
    """

    keys: Keys
    table: T.StructType
    track: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()
    is_partial: bool = False
    ids: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def columns(self) -> T.StructType:
        """The table's columns, all nullable: a delete has its key only."""
        columns = nullable_all(self.table)
        assert isinstance(columns, T.StructType)
        return columns

    @property
    def values(self) -> tuple[str, ...]:
        """The columns of the source's row."""
        others = (METADATA_COLUMN, CHANGE, DELETED, VALID_FROM, VALID_TO, EVENT)
        return tuple(column.name for column in self.table if column.name not in others)

    @property
    def tracked(self) -> tuple[str, ...]:
        """The columns whose changes begin a version."""
        return self.track or self.values

    @property
    def interval_column(self) -> str | None:
        """The order column whose values are the bounds of intervals; None if the bounds are times."""
        has_one = len(self.keys.order_by) == 1 and not self.keys.has_envelope
        return self.keys.order_by[0] if has_one else None

    @property
    def key_names(self) -> list[str]:
        """Names of the key's columns in frames of events."""
        return [key_column(number) for number in range(max(1, len(self.keys.columns)))]

    def same_event(self, one: str, other: str) -> str:
        """Return the condition that two rows have the same key and Kafka offset."""
        metadata = quoted(METADATA_COLUMN)
        place = [f"{one}.{metadata}.`{name}` = {other}.{metadata}.`{name}`" for name in ("partition", "offset")]
        topic = f"{one}.{metadata}.`topic_id` <=> {other}.{metadata}.`topic_id`"
        return " AND ".join([self.keys.same_key(one, other), *place, topic])

    def comparable(self, names: Sequence[str], of: str | None = None) -> Column:
        """Return one comparable value of some columns of the row, or of a struct column."""
        prefix = f"{of}." if of else ""
        values = {name: F.col(f"{prefix}{quoted(name)}") for name in names}
        return F.struct(
            *[_comparable(value, self.columns[name].dataType).alias(name) for name, value in values.items()]
        )


def _comparable(value: Column, kind: T.DataType) -> Column:
    """Return a comparable form of a value: Spark compares neither maps nor variants."""
    if not _has_map_or_variant(kind):
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
        return F.transform(value, lambda element: _comparable(element, kind.elementType))
    return F.to_json(F.struct(value.alias("v")), _JSON_OPTIONS)


def _has_map_or_variant(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return any(_has_map_or_variant(column.dataType) for column in kind)
    if isinstance(kind, T.ArrayType):
        return _has_map_or_variant(kind.elementType)
    return isinstance(kind, T.MapType | T.VariantType)


def event_rows(events: DataFrame, history: HistoryTable) -> DataFrame:
    """Return all events of a batch as rows of the table, without intervals."""
    ids = [F.when(F.array_contains(UNCHANGED, name), F.lit(history.ids[name])) for name in history.nullable]
    event = {"kept": F.array_compact(F.array(*ids)) if ids else F.array(), "at": F.col(EVENT_TIME)}
    values = {name: F.col(quoted(name)) for name in events.columns}
    values[DELETED] = F.col(OPERATION) == DELETE
    values[EVENT] = F.struct(*[value.cast(EVENT_TYPE[name].dataType).alias(name) for name, value in event.items()])
    return events.select(
        *[values.get(column.name, F.lit(None)).cast(column.dataType).alias(column.name) for column in history.columns]
    )


def stored_rows(rows: DataFrame, events: DataFrame, history: HistoryTable, bounds: KeyBounds) -> DataFrame:
    """Return the table's rows with the keys of a batch."""
    condition = " AND ".join([history.keys.same_key("t", "s"), *bounds.conditions("t")])
    return rows.alias("t").join(events.alias("s"), F.expr(condition), "left_semi")


def union_events(stored: DataFrame, batch: DataFrame, history: HistoryTable) -> DataFrame:
    """Return the stored events and those of a batch, each once. The batch's wins if an event was read again."""
    row = F.struct(*[F.col(quoted(name)) for name in history.columns.names])
    none = F.lit(None).cast(history.columns)
    both = stored.select(row.alias(_STORED_ROW), none.alias(_BATCH_ROW)).unionByName(
        batch.select(none.alias(_STORED_ROW), row.alias(_BATCH_ROW))
    )
    metadata = F.col(_ROW)[METADATA_COLUMN]
    key = {name: F.expr(part) for name, part in zip(history.key_names, history.keys.key(_ROW), strict=True)}
    place = {f"{INTERNAL}place_{name}": metadata[name] for name in _PLACE}
    placed = both.withColumn(_ROW, F.coalesce(_STORED_ROW, _BATCH_ROW)).withColumns({**key, **place})
    # All later steps work key by key.
    grouped = placed.repartition(*history.key_names).groupBy(*history.key_names, *place)
    rows = [F.first(name, ignorenulls=True).alias(name) for name in (_STORED_ROW, _BATCH_ROW)]
    one = grouped.agg(*rows, (F.count(_STORED_ROW) > 1).alias(IS_DUPLICATE))
    return one.select(
        *history.key_names,
        F.coalesce(_BATCH_ROW, _STORED_ROW).alias(_ROW),
        F.col(_STORED_ROW).alias(STORED),
        F.col(_BATCH_ROW).isNotNull().alias(IN_BATCH),
        IS_DUPLICATE,
    ).select(*history.key_names, f"{_ROW}.*", STORED, IN_BATCH, IS_DUPLICATE)


def with_intervals(events: DataFrame, history: HistoryTable) -> DataFrame:
    """Return all events of some keys with their intervals, and with the values that they left unchanged.

    A version is a run of events that change no tracked column. The row of its last event has the interval of the run.
    Rows of the other events, and of deletes, have an empty interval: they keep their own event's values, and a late
    event finds them unchanged.
    """
    by = Window.partitionBy(*history.key_names).orderBy(_ORDER)
    until_now = by.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_deleted = F.col(DELETED)
    timed = _with_event_order(events, history).withColumns(
        {_TIME: F.max(_time(history)).over(until_now), _SPAN: F.count_if(is_deleted).over(until_now)}
    )
    filled = _with_unchanged_values(_with_ignored_nulls(timed, history), history, until_now)
    values = history.comparable(history.tracked)
    before = F.lag(F.struct(is_deleted.alias("is_deleted"), values.alias("values"))).over(by)
    compared = filled.withColumns({_BEFORE: before, _TIME: _time_of_tombstones(history, F.lead(_TIME).over(by))})
    # After a delete, and at the beginning, a version begins whatever its values are.
    is_same = ~is_deleted & ~F.col(_BEFORE)["is_deleted"] & F.col(_BEFORE)["values"].eqNullSafe(values)
    marked = compared.withColumn(_SAME, F.coalesce(is_same, F.lit(False)))
    begins = F.when(~is_deleted & ~F.col(_SAME), F.col(_TIME))
    following = F.struct(F.col(_TIME).alias("time"), F.col(_SAME).alias("same"))
    runs = marked.withColumns(
        {_BEGAN: F.last(begins, ignorenulls=True).over(until_now), _NEXT: F.lead(following).over(by)}
    )
    is_version = ~is_deleted & ~F.coalesce(F.col(_NEXT)["same"], F.lit(False))
    interval = {
        VALID_FROM: F.when(is_version, F.col(_BEGAN)).otherwise(F.col(_TIME)),
        VALID_TO: F.when(is_version, F.col(_NEXT)["time"]).otherwise(F.col(_TIME)),
    }
    names = [*history.columns.names, STORED, IN_BATCH, IS_DUPLICATE, IS_UNPLACED, UNKNOWN]
    return runs.select(*[interval.get(name, F.col(quoted(name))).alias(name) for name in names])


def _with_event_order(events: DataFrame, history: HistoryTable) -> DataFrame:
    """Return events with their order, without deletes that add nothing.

    A delete without an order is newer than the events before it in its Kafka partition, and older than all others.
    """
    keys, metadata = history.keys, quoted(METADATA_COLUMN)
    envelope = [CHANGE] if keys.has_envelope else []
    names = list(dict.fromkeys([*keys.columns, *keys.order_by, *envelope, METADATA_COLUMN]))
    placed = events.withColumn(_DECLARED, F.struct(*[F.col(quoted(name)) for name in names]))
    placed = placed.withColumns({_PLACED: F.col(_DECLARED), IS_UNPLACED: F.lit(False)})
    if keys.has_order:
        values = [F.expr(value) for value in keys.order_values(_DECLARED)]
        order = ", ".join([*keys.source_order(_DECLARED), keys.kafka_order(_DECLARED)[2]])
        partition = Window.partitionBy(*history.key_names, f"{metadata}.topic_id", f"{metadata}.partition")
        earlier = newest_before(
            values,
            F.col(DELETED),
            F.when(values[0].isNotNull(), F.expr(f"struct({order})")),
            partition.orderBy(f"{metadata}.offset"),
            has_envelope=keys.has_envelope,
        )
        placed = placed.withColumn(_BEFORE, earlier)
        filled = [F.coalesce(value, F.col(_BEFORE)[f"_{number}"]) for number, value in enumerate(values)]
        is_unplaced = F.col(DELETED) & filled[0].isNull()
        placed_order = F.struct(*with_order(_DECLARED, names, keys, filled))
        placed = placed.withColumns({_PLACED: placed_order, IS_UNPLACED: is_unplaced})
        # Debezium sends a tombstone after each delete: by itself it deletes nothing.
        adds_nothing = (is_unplaced & F.lit(keys.has_envelope)) | F.col(_BEFORE)["is_delete"]
        is_redundant = F.col(DELETED) & values[0].isNull() & adds_nothing
        placed = placed.filter(F.col(STORED).isNotNull() | ~F.coalesce(is_redundant, F.lit(False)))
    is_todays, partition_of, offset = keys.kafka_order(_PLACED)
    # Of two deleted topics, the one with older records came first.
    topic = F.min(f"{metadata}.timestamp").over(Window.partitionBy(*history.key_names, f"{metadata}.topic_id"))
    order_of = F.struct(
        *[F.expr(value).alias(f"_{number}") for number, value in enumerate([*keys.source_order(_PLACED), is_todays])],
        topic.alias("topic"),
        F.expr(partition_of).alias("partition"),
        F.expr(offset).alias("offset"),
    )
    return placed.withColumn(_ORDER, order_of)


def _time(history: HistoryTable) -> Column:
    """Return the beginning of an event's interval; null if the event has no time."""
    if history.interval_column is not None:
        return F.col(_PLACED)[history.interval_column]
    return F.when(~F.col(IS_UNPLACED), F.coalesce(*_event_times(history)))


def _event_times(history: HistoryTable) -> list[Column]:
    """Return times of an event, the best first: in the source, in Kafka, and the epoch."""
    return [F.col(EVENT)["at"], F.col(f"{quoted(METADATA_COLUMN)}.timestamp"), F.expr(_EPOCH)]


def _time_of_tombstones(history: HistoryTable, following: Column) -> Column:
    """Return the beginning of an event's interval, given that of the key's next event.

    A delete without an order happened after the event before it, at its time in Kafka, and before the next event.
    """
    time, kind = F.col(_TIME), history.columns[VALID_FROM].dataType
    if isinstance(kind, T.NumericType):
        # The first event of a key gets an empty interval.
        return F.coalesce(time, following, F.lit(0).cast(kind))
    has_no_order = F.lit(False)
    if history.interval_column is not None:
        has_no_order = F.col(DELETED) & F.col(_DECLARED)[history.interval_column].isNull()
    event_time = F.coalesce(*_event_times(history)).cast(kind)
    between = F.greatest(time, F.least(event_time, following))
    return F.when(has_no_order | F.col(IS_UNPLACED), between).otherwise(time)


def _with_ignored_nulls(events: DataFrame, history: HistoryTable) -> DataFrame:
    """Count columns that were added after an event as unchanged by it, where a null leaves a value unchanged."""
    if not (history.is_partial and history.nullable):
        return events
    nulls = [F.when(F.col(quoted(name)).isNull(), F.lit(history.ids[name])) for name in history.nullable]
    unchanged = F.array_union(F.col(EVENT)["kept"], F.array_compact(F.array(*nulls)))
    unchanged = F.when(F.col(DELETED), F.col(EVENT)["kept"]).otherwise(unchanged)
    return events.withColumn(EVENT, F.col(EVENT).withField("kept", unchanged))


def _with_unchanged_values(events: DataFrame, history: HistoryTable, until_now: WindowSpec) -> DataFrame:
    """Fill unchanged columns from the newest event before with a value, back to the last delete."""
    if not history.nullable:
        return events.withColumn(UNKNOWN, no_names())
    unchanged, is_deleted, span = F.col(EVENT)["kept"], F.col(DELETED), F.col(_SPAN).alias("span")
    filled, unknown = {}, []
    for name in history.nullable:
        value = F.col(quoted(name))
        is_unchanged = F.array_contains(unchanged, history.ids[name])
        with_value = F.when(~is_unchanged & ~is_deleted, F.struct(span, value.alias("value")))
        last = F.last(with_value, ignorenulls=True).over(until_now)
        is_known = last.isNotNull() & (last["span"] == F.col(_SPAN))
        filled[name] = F.when(~is_unchanged, value).otherwise(F.when(is_known, last["value"]))
        unknown.append(F.when(is_unchanged & ~is_known & ~is_deleted, F.lit(name)))
    columns = [filled.get(name, F.col(quoted(name))).alias(name) for name in events.columns]
    return events.select(*columns, F.array_compact(F.array(*unknown)).alias(UNKNOWN))


def is_changed(history: HistoryTable) -> Column:
    """Return whether an event's row is new or different."""
    names = history.columns.names
    return F.col(STORED).isNull() | ~history.comparable(names).eqNullSafe(history.comparable(names, STORED))


def merge_statement(table: str, view: str, columns: Sequence[str], history: HistoryTable, bounds: KeyBounds) -> str:
    """Return the MERGE of a history table, which updates or inserts the row of each event."""
    condition = " AND ".join([history.same_event("t", "s"), *bounds.conditions("t")])
    names = [quoted(name) for name in columns]
    return "\n".join(
        [
            f"MERGE INTO {table} AS t USING {view} AS s ON {condition}",
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)}",
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})",
        ]
    )


@dataclass(frozen=True)
class HistoryResult:
    """Result of a batch of change events in a history.

    Args:
        changes: Records that were applied.
        rows: New rows; ``rewritten`` rows were there before.
        versions: Number of versions added; ``closed`` counts versions that got an end.
        duplicates: Events of which the table has several rows.
        overlapping: Versions that end after the next one begins.
    """

    changes: int = 0
    deletes: int = 0
    rows: int = 0
    versions: int = 0
    closed: int = 0
    rewritten: int = 0
    duplicates: int = 0
    overlapping: int = 0
    merged: MergeCounts = field(default_factory=MergeCounts)
    missing_values: tuple[MissingValue, ...] = ()
    validation: ValidationResult = field(default_factory=ValidationResult)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        merged, count = self.merged, self.rows + self.rewritten
        counts = {
            "changes have several rows in the table": self.duplicates,
            "versions overlap the next one": self.overlapping,
        }
        problems = [f"{number} {what}" for what, number in counts.items() if number]
        problems += merged.problems(keys=count, rows=count)
        if (merged.inserted, merged.updated) != (self.rows, self.rewritten):
            problems.append(
                f"{self.rows} rows are new and {self.rewritten} changed, but {merged.inserted} were inserted and "
                f"{merged.updated} updated"
            )
        return tuple(problems)

    @property
    def facts(self) -> dict[str, int]:
        """Return the figures for the check's metadata."""
        return {
            "rows_added": self.rows,
            "versions_added": self.versions,
            "versions_closed": self.closed,
            "rows_rewritten": self.rewritten,
        }


def history_counts(events: DataFrame, history: HistoryTable) -> dict[str, Any]:
    """Return the number of changed rows and the counts of `HistoryResult`, from all events of a batch's keys."""
    is_new, key = F.col(STORED).isNull(), history.keys.key("e")
    now, before = _is_version(""), _is_version(f"{STORED}.")
    valid_to, had_end = F.col(VALID_TO), F.col(STORED)[VALID_TO].isNotNull()
    versions = Window.partitionBy(*map(F.expr, key), now).orderBy(F.col(VALID_FROM), valid_to.asc_nulls_last())
    following = F.lead(VALID_FROM).over(versions)
    overlaps = now & following.isNotNull() & (valid_to.isNull() | (following < valid_to))
    aggregates = {
        "duplicates": F.count_if(IS_DUPLICATE),
        "changed": F.count_if(is_changed(history)),
        "rows": F.count_if(is_new),
        "versions": F.count_if(now) - F.count_if(~is_new & before),
        "closed": F.count_if(now & valid_to.isNotNull()) - F.count_if(~is_new & before & had_end),
        "overlapping": F.count_if(_NEXT),
    }
    marked = events.alias("e").withColumn(_NEXT, overlaps)
    counts: dict[str, Any] = marked.agg(*[c.alias(name) for name, c in aggregates.items()]).collect()[0].asDict()
    return counts


def _is_version(prefix: str) -> Column:
    valid_from, valid_to = F.col(f"{prefix}{VALID_FROM}"), F.col(f"{prefix}{VALID_TO}")
    return ~F.col(f"{prefix}{DELETED}") & (valid_to.isNull() | (valid_from < valid_to))
