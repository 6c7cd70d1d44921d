"""History tables (SCD 2): every change is a row with the interval in which its version is valid.

The rows are a function of all changes of a key, sorted: in which batch a change came makes no difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.cdc.task.change import DELETE
from kafka_lake.formats.columns import nullable_all
from kafka_lake.formats.rows import CHANGE, DELETED, EVENT, EVENT_TYPE, VALID_FROM, VALID_TO, is_counted
from kafka_lake.quality.validation import ValidationResult
from kafka_lake.writers.upsert.deduplicate import UNKNOWN, MissingValue, told_before, with_order
from kafka_lake.writers.upsert.keys import EVENT_TIME, OPERATION, UNCHANGED, Bounds, Keys, quoted
from kafka_lake.writers.upsert.merge import Merged, run_merge

STORED = "__kafka_lake_stored"
"""The table's row of an event; null if it has none."""
IN_BATCH = "__kafka_lake_in_batch"
"""Whether an event is in the batch."""
IS_DOUBLE = "__kafka_lake_is_double"
"""Whether the table has several rows of an event."""
IS_UNPLACED = "__kafka_lake_is_unplaced"
"""Whether an event is a delete without an order, and no event of its key precedes it in its Kafka partition."""
_OLD, _NEW, _ROW = "__kafka_lake_old", "__kafka_lake_new", "__kafka_lake_row"
_PLACE, _PLACES = "__kafka_lake_place_", ("topic_id", "partition", "offset")
_TOLD, _PLACED, _ORDER = (f"__kafka_lake_{name}" for name in ("told", "placed", "order"))
_TIME, _SPAN, _BEFORE, _SAME, _BEGAN, _NEXT = (
    f"__kafka_lake_{name}" for name in ("time", "span", "before", "same", "began", "next")
)
_EPOCH = "TIMESTAMP '1970-01-01 00:00:00Z'"
_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_AS_JSON = {"ignoreNullFields": "false", "timestampFormat": _MICROSECONDS, "timestampNTZFormat": _MICROSECONDS}


@dataclass(frozen=True)
class Shape:
    """The columns of a history table.

    Args:
        track: Columns whose changes make a version; empty for all.
        may_lack: Columns that a change may leave as they are.
        is_partial: Whether values that no change has are null; if not, such a change can't be applied.
        ids: Field ids by column name.
    """

    keys: Keys
    table: T.StructType
    track: tuple[str, ...] = ()
    may_lack: tuple[str, ...] = ()
    is_partial: bool = False
    ids: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def columns(self) -> T.StructType:
        """The table's columns, all of them nullable."""
        columns = nullable_all(self.table)
        assert isinstance(columns, T.StructType)
        return columns

    @property
    def values(self) -> tuple[str, ...]:
        """The columns of the source's row."""
        others = (self.keys.metadata, CHANGE, DELETED, VALID_FROM, VALID_TO, EVENT)
        return tuple(each.name for each in self.table if each.name not in others)

    @property
    def tracked(self) -> tuple[str, ...]:
        """The columns whose changes make a version."""
        return self.track or self.values

    @property
    def has_one_order(self) -> bool:
        """Return whether one column is the whole order."""
        return len(self.keys.order_by) == 1 and not self.keys.has_envelope

    @property
    def order_column(self) -> str | None:
        """The column whose values are the bounds of intervals; None if those are times."""
        name = self.keys.order_by[0] if self.has_one_order else None
        return name if name is not None and is_counted(self.table[name].dataType) else None

    @property
    def key_names(self) -> list[str]:
        """Names of the key's columns in frames of events."""
        return [f"__kafka_lake_key_{number}" for number in range(max(1, len(self.keys.columns)))]

    def same_event(self, one: str, other: str) -> str:
        """Return the condition that two rows have the same key and the same place in Kafka."""
        metadata = quoted(self.keys.metadata)
        place = [f"{one}.{metadata}.`{name}` = {other}.{metadata}.`{name}`" for name in ("partition", "offset")]
        topic = f"{one}.{metadata}.`topic_id` <=> {other}.{metadata}.`topic_id`"
        return " AND ".join([self.keys.same(one, other), *place, topic])

    def compared(self, names: tuple[str, ...], of: str | None = None) -> Column:
        """Return one comparable value of some columns of the row, or of a struct column."""
        before = f"{of}." if of else ""
        return F.struct(
            *[_comparable(F.col(f"{before}{quoted(name)}"), self.columns[name].dataType).alias(name) for name in names]
        )


def _comparable(value: Column, kind: T.DataType) -> Column:
    """Return a comparable form of a value: Spark compares neither maps nor variants."""
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


def events_of(changes: DataFrame, shape: Shape) -> DataFrame:
    """Return all changes of a batch as rows of the table, without intervals."""
    left = [F.when(F.array_contains(UNCHANGED, name), F.lit(shape.ids[name])) for name in shape.may_lack]
    event = {"kept": F.array_compact(F.array(*left)) if left else F.array(), "at": F.col(EVENT_TIME)}
    made: dict[str, Column] = {
        DELETED: F.col(OPERATION) == DELETE,
        EVENT: F.struct(*[value.cast(EVENT_TYPE[name].dataType).alias(name) for name, value in event.items()]),
    }
    have = set(changes.columns)
    return changes.select(
        *[
            (made.get(field.name, F.col(quoted(field.name)) if field.name in have else F.lit(None)))
            .cast(field.dataType)
            .alias(field.name)
            for field in shape.columns
        ]
    )


def stored_of(rows: DataFrame, events: DataFrame, shape: Shape, within: Bounds) -> DataFrame:
    """Return the rows of a table with the keys of some events."""
    condition = " AND ".join([shape.keys.same("t", "s"), *within.hold_for("t")])
    return rows.alias("t").join(events.alias("s"), F.expr(condition), "left_semi")


def joined(stored: DataFrame, batch: DataFrame, shape: Shape) -> DataFrame:
    """Return the stored events and those of a batch, each once; an event that was read again is the batch's."""
    row = F.struct(*[F.col(quoted(name)) for name in shape.columns.names])
    none = F.lit(None).cast(shape.columns)
    both = stored.select(row.alias(_OLD), none.alias(_NEW)).unionByName(batch.select(none.alias(_OLD), row.alias(_NEW)))
    place = F.col(_ROW)[shape.keys.metadata]
    key = {name: F.expr(each) for name, each in zip(shape.key_names, shape.keys.key(_ROW), strict=True)}
    placed = both.withColumn(_ROW, F.coalesce(_OLD, _NEW)).withColumns(
        {**key, **{f"{_PLACE}{name}": place[name] for name in _PLACES}}
    )
    # Everything that follows is computed key by key.
    grouped = placed.repartition(*shape.key_names).groupBy(*shape.key_names, *[f"{_PLACE}{each}" for each in _PLACES])
    either = [F.first(name, ignorenulls=True).alias(name) for name in (_OLD, _NEW)]
    one = grouped.agg(*either, (F.count(_OLD) > 1).alias(IS_DOUBLE))
    return one.select(
        *shape.key_names,
        F.coalesce(_NEW, _OLD).alias(_ROW),
        F.col(_OLD).alias(STORED),
        F.col(_NEW).isNotNull().alias(IN_BATCH),
        IS_DOUBLE,
    ).select(*shape.key_names, f"{_ROW}.*", STORED, IN_BATCH, IS_DOUBLE)


def with_intervals(events: DataFrame, shape: Shape) -> DataFrame:
    """Return all events of some keys with their intervals and the values that they left as they were.

    A version is a run of events that change no tracked column. The row of its last event has the interval of the run;
    rows of the other events, and of deletes, have an empty interval. So each row keeps its own event's values, and a
    late event finds them unchanged.
    """
    by = Window.partitionBy(*shape.key_names).orderBy(_ORDER)
    until_now = by.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_gone = F.col(DELETED)
    timed = _ordered(events, shape).withColumns(
        {_TIME: F.max(_time(shape)).over(until_now), _SPAN: F.count_if(is_gone).over(until_now)}
    )
    filled = _filled(_also_kept(timed, shape), shape, until_now)
    values = shape.compared(shape.tracked)
    before = F.struct(is_gone.alias("is_gone"), values.alias("values"))
    compared = filled.withColumns({_BEFORE: F.lag(before).over(by), _TIME: _ended(shape, F.lead(_TIME).over(by))})
    # After a delete, and at the beginning, a version begins whatever its values are.
    is_same = ~is_gone & ~F.col(_BEFORE)["is_gone"] & F.col(_BEFORE)["values"].eqNullSafe(values)
    marked = compared.withColumn(_SAME, F.coalesce(is_same, F.lit(False)))
    begins = F.when(~is_gone & ~F.col(_SAME), F.col(_TIME))
    following = F.struct(F.col(_TIME).alias("time"), F.col(_SAME).alias("same"))
    told = marked.withColumns(
        {_BEGAN: F.last(begins, ignorenulls=True).over(until_now), _NEXT: F.lead(following).over(by)}
    )
    counts = ~is_gone & ~F.coalesce(F.col(_NEXT)["same"], F.lit(False))
    found = {
        VALID_FROM: F.when(counts, F.col(_BEGAN)).otherwise(F.col(_TIME)),
        VALID_TO: F.when(counts, F.col(_NEXT)["time"]).otherwise(F.col(_TIME)),
    }
    names = [*shape.columns.names, STORED, IN_BATCH, IS_DOUBLE, IS_UNPLACED, UNKNOWN]
    return told.select(*[found.get(name, F.col(quoted(name))).alias(name) for name in names])


def _ordered(events: DataFrame, shape: Shape) -> DataFrame:
    """Return events with their order, without deletes that add nothing.

    A delete without an order is newer than the events before it in its Kafka partition, and older than all others.
    """
    keys, metadata = shape.keys, quoted(shape.keys.metadata)
    envelope = [CHANGE] if keys.has_envelope else []
    names = list(dict.fromkeys([*keys.columns, *keys.order_by, *envelope, keys.metadata]))
    keyed = events.withColumn(_TOLD, F.struct(*[F.col(quoted(name)) for name in names]))
    keyed = keyed.withColumns({_PLACED: F.col(_TOLD), IS_UNPLACED: F.lit(False)})
    if keys.has_order:
        told = [F.expr(each) for each in keys.told(_TOLD)]
        own_order = ", ".join([*keys.own_order(_TOLD), keys.place(_TOLD)[2]])
        own = F.when(told[0].isNotNull(), F.expr(f"struct({own_order})"))
        of_partition = Window.partitionBy(*shape.key_names, f"{metadata}.topic_id", f"{metadata}.partition")
        by_offset = of_partition.orderBy(f"{metadata}.offset")
        newest = told_before(told, F.col(DELETED), own, by_offset, has_envelope=keys.has_envelope)
        keyed = keyed.withColumn(_BEFORE, newest)
        order = [F.coalesce(each, F.col(_BEFORE)[f"_{number}"]) for number, each in enumerate(told)]
        is_unplaced = F.col(DELETED) & order[0].isNull()
        keyed = keyed.withColumns({_PLACED: F.struct(*with_order(_TOLD, names, keys, order)), IS_UNPLACED: is_unplaced})
        # Debezium's tombstones never delete anything by themselves.
        adds_nothing = (is_unplaced & F.lit(keys.has_envelope)) | F.col(_BEFORE)["is_gone"]
        says_nothing = F.col(DELETED) & told[0].isNull() & adds_nothing
        keyed = keyed.filter(F.col(STORED).isNotNull() | ~F.coalesce(says_nothing, F.lit(False)))
    is_todays, partition, offset = keys.place(_PLACED)
    # Of two deleted topics, the one with older records came first.
    topic = F.min(f"{metadata}.timestamp").over(Window.partitionBy(*shape.key_names, f"{metadata}.topic_id"))
    order_of = F.struct(
        *[F.expr(each).alias(f"_{number}") for number, each in enumerate([*keys.own_order(_PLACED), is_todays])],
        topic.alias("topic"), F.expr(partition).alias("partition"), F.expr(offset).alias("offset"),
    )  # fmt: skip
    return keyed.withColumn(_ORDER, order_of)


def _time(shape: Shape) -> Column:
    """Return the beginning of an event's interval, null if the event has no time."""
    if shape.order_column is not None:
        return F.col(_PLACED)[shape.order_column]
    told = [F.col(EVENT)["at"], F.col(f"{quoted(shape.keys.metadata)}.timestamp"), F.expr(_EPOCH)]
    is_text = shape.has_one_order and shape.keys.order_by[0] in shape.keys.texts
    text = [F.expr(shape.keys.own_order(_PLACED)[0])] if is_text else []
    return F.when(~F.col(IS_UNPLACED), F.coalesce(*text, *told))


def _ended(shape: Shape, following: Column) -> Column:
    """Return the beginning of an event's interval, given that of the next event of its key.

    A delete without an order happened after the event before it, at its time in Kafka, but not after the next event.
    """
    time, kind = F.col(_TIME), shape.columns[VALID_FROM].dataType
    if isinstance(kind, T.NumericType):
        # The first event of a key gets an empty interval.
        return F.coalesce(time, following, F.lit(0).cast(kind))
    is_untold = F.col(DELETED) & F.col(_TOLD)[shape.keys.order_by[0]].isNull() if shape.has_one_order else F.lit(False)
    about = F.coalesce(F.col(EVENT)["at"], F.col(f"{quoted(shape.keys.metadata)}.timestamp"), F.expr(_EPOCH)).cast(kind)
    behind = F.greatest(time, F.least(about, following))
    return F.when(is_untold | F.col(IS_UNPLACED), behind).otherwise(time)


def _also_kept(events: DataFrame, shape: Shape) -> DataFrame:
    """Add columns that came after an event to those that it left as they were, where a null means that."""
    if not (shape.is_partial and shape.may_lack):
        return events
    untold = [F.when(F.col(quoted(name)).isNull(), F.lit(shape.ids[name])) for name in shape.may_lack]
    kept = F.array_union(F.col(EVENT)["kept"], F.array_compact(F.array(*untold)))
    event = F.col(EVENT).withField("kept", F.when(F.col(DELETED), F.col(EVENT)["kept"]).otherwise(kept))
    return events.withColumn(EVENT, event)


def _filled(timed: DataFrame, shape: Shape, until_now: WindowSpec) -> DataFrame:
    """Give events the values that they left as they were, from the newest event before them since the last delete."""
    if not shape.may_lack:
        return timed.withColumn(UNKNOWN, F.array().cast("array<string>"))
    kept, is_gone, span = F.col(EVENT)["kept"], F.col(DELETED), F.col(_SPAN).alias("span")
    found, unknown = {}, []
    for name in shape.may_lack:
        value = F.col(quoted(name))
        keeps = F.array_contains(kept, shape.ids[name])
        tells = F.when(~keeps & ~is_gone, F.struct(span, value.alias("value")))
        last = F.last(tells, ignorenulls=True).over(until_now)
        is_known = last.isNotNull() & (last["span"] == F.col(_SPAN))
        found[name] = F.when(~keeps, value).otherwise(F.when(is_known, last["value"]))
        unknown.append(F.when(keeps & ~is_known & ~is_gone, F.lit(name)))
    columns = [found.get(name, F.col(quoted(name))).alias(name) for name in timed.columns]
    return timed.select(*columns, F.array_compact(F.array(*unknown)).alias(UNKNOWN))


def is_changed(shape: Shape) -> Column:
    """Return whether an event's row is new or different."""
    names = tuple(shape.columns.names)
    return F.col(STORED).isNull() | ~shape.compared(names).eqNullSafe(shape.compared(names, STORED))


def merge_events(
    spark: Any,
    branch: StagingBranch,
    changed: DataFrame,
    shape: Shape,
    *,
    within: Bounds,
    summary: Mapping[str, str],
) -> None:
    """Merge rows, each event once, into a branch; `StagingBranch.written` checks it."""
    run_merge(
        spark,
        changed,
        summary,
        lambda view: statement(branch.write_name, view, changed.columns, shape, within=within),
    )


def statement(table: str, view: str, columns: Sequence[str], shape: Shape, *, within: Bounds) -> str:
    """Return the MERGE. Pure."""
    condition = " AND ".join([shape.same_event("t", "s"), *within.hold_for("t")])
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
    """What became of a batch of changes in a history.

    Args:
        changes: Records that were applied.
        rows: New rows of the keys; ``rewritten`` rows were there before.
        versions: How many versions more there are than before; ``closed`` counts those with an end.
        double: Events of which the table has several rows.
        overlapping: Versions that end after the next one begins.
        not_sent: Changes that lack values, by partition and offset.
        verdict: Result of the rules.
    """

    changes: int = 0
    deletes: int = 0
    rows: int = 0
    versions: int = 0
    closed: int = 0
    rewritten: int = 0
    double: int = 0
    overlapping: int = 0
    merged: Merged = field(default_factory=Merged)
    not_sent: tuple[MissingValue, ...] = ()
    verdict: ValidationResult = field(default_factory=ValidationResult)

    def of(self, changes: int, deletes: int, verdict: ValidationResult) -> "HistoryResult":
        """Return the same with these counts."""
        return replace(self, changes=changes, deletes=deletes, verdict=verdict)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        merged, count = self.merged, self.rows + self.rewritten
        said = {
            "changes have several rows in the table": self.double,
            "versions overlap the next one": self.overlapping,
        }
        found = [f"{number} {what}" for what, number in said.items() if number]
        found += merged.problems(keys=count, brings=count)
        if (merged.inserted, merged.updated) != (self.rows, self.rewritten):
            found.append(
                f"{self.rows} rows are new and {self.rewritten} changed, but {merged.inserted} were inserted and "
                f"{merged.updated} updated"
            )
        return tuple(found)

    @property
    def facts(self) -> dict[str, int]:
        """Return the figures for the check's page."""
        return {
            "rows_added": self.rows,
            "versions_added": self.versions,
            "versions_closed": self.closed,
            "rows_rewritten": self.rewritten,
        }


def counts_of(made: DataFrame, shape: Shape) -> dict[str, int]:
    """Return the number of ``changed`` rows and the figures of `HistoryResult`, of all rows of a batch's keys."""
    is_new, key = F.col(STORED).isNull(), shape.keys.key("made")
    now, before = _is_version(""), _is_version(f"{STORED}.")
    ends, ended_before = F.col(VALID_TO), F.col(STORED)[VALID_TO].isNotNull()
    versions = Window.partitionBy(*map(F.expr, key), now).orderBy(F.col(VALID_FROM), ends.asc_nulls_last())
    following = F.lead(VALID_FROM).over(versions)
    overlaps = now & following.isNotNull() & (ends.isNull() | (following < ends))
    figures = {
        "double": F.count_if(IS_DOUBLE),
        "changed": F.count_if(is_changed(shape)),
        "rows": F.count_if(is_new),
        "versions": F.count_if(now) - F.count_if(~is_new & before),
        "closed": F.count_if(now & ends.isNotNull()) - F.count_if(~is_new & before & ended_before),
        "overlapping": F.count_if(_NEXT),
    }
    marked = made.alias("made").withColumn(_NEXT, overlaps)
    counts: dict[str, int] = marked.agg(*[each.alias(name) for name, each in figures.items()]).collect()[0].asDict()
    return counts


def _is_version(before: str) -> Column:
    begins, ends = F.col(f"{before}{VALID_FROM}"), F.col(f"{before}{VALID_TO}")
    return ~F.col(f"{before}{DELETED}") & (ends.isNull() | (begins < ends))
