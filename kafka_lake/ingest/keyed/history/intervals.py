"""Intervals: which events of a key make a version, from when until when it counts, and which values it has.

A function of a key's events alone: whatever came in which batch, the rows are those of all events sorted at once.
"""

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode.rows import CHANGE, DELETED, EVENT, VALID_FROM, VALID_TO
from kafka_lake.ingest.keyed.fold import told_before, with_order
from kafka_lake.ingest.keyed.history.events import IN_BATCH, IS_DOUBLE, STORED
from kafka_lake.ingest.keyed.history.shape import Shape
from kafka_lake.ingest.keyed.keys import quoted

IS_UNPLACED = "__kafka_lake_is_unplaced"
"""Whether an event is a delete without an order, with no event of its key before it in its Kafka partition."""
UNKNOWN = "__kafka_lake_unknown"
"""Columns that an event leaves as they are, and that no event before it has told."""
_TOLD, _PLACED, _ORDER = (f"__kafka_lake_{name}" for name in ("told", "placed", "order"))
_TIME, _SPAN, _BEFORE, _SAME, _BEGAN, _NEXT = (
    f"__kafka_lake_{name}" for name in ("time", "span", "before", "same", "began", "next")
)
_EPOCH = "TIMESTAMP '1970-01-01 00:00:00Z'"


def with_intervals(events: DataFrame, shape: Shape) -> DataFrame:
    """Return events with ``valid_from``, ``valid_to`` and the values that they left as they were.

    A version is a run of events that change no tracked column. Its row is that of the run's last event, from the time
    of the first one on; the rows of the others, and of deletes, count for no time at all. So no row ever has another
    event's values, and one that comes late finds all of them as they were told.

    Args:
        events: What `joined` gave: all events of their keys.

    Returns:
        The columns of the events, `IS_UNPLACED` and `UNKNOWN`. Deletes that add nothing aren't among them.
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
    # Behind a delete, and at the beginning, a version begins, whatever its values are.
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

    A delete that has no order of its own is newer than the events before it in its Kafka partition, and older than all
    others.
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
        # Debezium's tombstones say nothing of their own.
        adds_nothing = (is_unplaced & F.lit(keys.has_envelope)) | F.col(_BEFORE)["is_gone"]
        says_nothing = F.col(DELETED) & told[0].isNull() & adds_nothing
        keyed = keyed.filter(F.col(STORED).isNotNull() | ~F.coalesce(says_nothing, F.lit(False)))
    is_todays, partition, offset = keys.place(_PLACED)
    # Of two topics that were deleted, the one whose records are older was there before.
    topic = F.min(f"{metadata}.timestamp").over(Window.partitionBy(*shape.key_names, f"{metadata}.topic_id"))
    order_of = F.struct(
        *[F.expr(each).alias(f"_{number}") for number, each in enumerate([*keys.own_order(_PLACED), is_todays])],
        topic.alias("topic"), F.expr(partition).alias("partition"), F.expr(offset).alias("offset"),
    )  # fmt: skip
    return keyed.withColumn(_ORDER, order_of)


def _time(shape: Shape) -> Column:
    """Return from when on an event counts, as far as it says so itself."""
    if shape.order_column is not None:
        return F.col(_PLACED)[shape.order_column]
    told = [F.col(EVENT)["at"], F.col(f"{quoted(shape.keys.metadata)}.timestamp"), F.expr(_EPOCH)]
    # Text that is a time.
    is_text = shape.has_one_order and shape.keys.order_by[0] in shape.keys.texts
    text = [F.expr(shape.keys.own_order(_PLACED)[0])] if is_text else []
    return F.when(~F.col(IS_UNPLACED), F.coalesce(*text, *told))


def _ended(shape: Shape, following: Column) -> Column:
    """Return from when on an event counts, given when the next one of its key does.

    A delete without an order of its own is placed behind what came before it. When that was, Kafka knows, where the
    order is one of times; but what is known to be newer wasn't before it.
    """
    time, kind = F.col(_TIME), shape.columns[VALID_FROM].dataType
    if isinstance(kind, T.NumericType):
        # One that has nothing before it counts for no time: what comes next begins when it does.
        return F.coalesce(time, following, F.lit(0).cast(kind))
    is_untold = F.col(DELETED) & F.col(_TOLD)[shape.keys.order_by[0]].isNull() if shape.has_one_order else F.lit(False)
    about = F.coalesce(F.col(EVENT)["at"], F.col(f"{quoted(shape.keys.metadata)}.timestamp"), F.expr(_EPOCH)).cast(kind)
    behind = F.greatest(time, F.least(about, following))
    return F.when(is_untold | F.col(IS_UNPLACED), behind).otherwise(time)


def _also_kept(events: DataFrame, shape: Shape) -> DataFrame:
    """Return events, those from before a column was there with it among the columns that they left as they were.

    Where a null says nothing, they told nothing of it. Their rows can't name a column that the table didn't have.
    """
    if not (shape.is_partial and shape.may_lack):
        return events
    untold = [F.when(F.col(quoted(name)).isNull(), F.lit(shape.ids[name])) for name in shape.may_lack]
    kept = F.array_union(F.col(EVENT)["kept"], F.array_compact(F.array(*untold)))
    event = F.col(EVENT).withField("kept", F.when(F.col(DELETED), F.col(EVENT)["kept"]).otherwise(kept))
    return events.withColumn(EVENT, event)


def _filled(timed: DataFrame, shape: Shape, until_now: WindowSpec) -> DataFrame:
    """Give events the values that they left as they were: those of the newest event before that tells them.

    Behind a delete there is nothing that could be left.
    """
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
