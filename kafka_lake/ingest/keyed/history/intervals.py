"""Intervals: which events of a key make a version, from when until when it counts, and which values it has.

A function of a key's events alone: whatever came in which batch, the rows are those of all events sorted at once.
"""

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode.rows import CHANGE, DELETED, EVENT, VALID_FROM, VALID_TO
from kafka_lake.ingest.keyed.fold import told_before, with_order
from kafka_lake.ingest.keyed.history.closings import is_closing
from kafka_lake.ingest.keyed.history.events import IN_BATCH, STORED
from kafka_lake.ingest.keyed.history.shape import Shape
from kafka_lake.ingest.keyed.keys import quoted

NEWEST = "__kafka_lake_newest"
"""Whether an event is the newest one of its key."""
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
        shape: Of the history.

    Returns:
        The columns of the events, and `NEWEST`. Deletes that say nothing new aren't among them.
    """
    by = Window.partitionBy(*shape.key_names).orderBy(_ORDER)
    until_now = by.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_gone = F.col(DELETED)
    takes_away = is_gone & F.lit(not shape.keys.is_soft)
    timed = _ordered(events, shape).withColumns(
        {_TIME: F.max(_time(shape)).over(until_now), _SPAN: F.count_if(takes_away).over(until_now)}
    )
    filled = _filled(timed, shape, until_now)
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
        NEWEST: F.col(_NEXT).isNull(),
    }
    names = [*shape.columns.names, STORED, IN_BATCH, NEWEST]
    return told.select(*[found.get(name, F.col(quoted(name))).alias(name) for name in names])


def _ordered(events: DataFrame, shape: Shape) -> DataFrame:
    """Return events with their order, but for deletes that say nothing new.

    A delete that has no order of its own is newer than what came before it in its Kafka partition.
    """
    keys, metadata = shape.keys, quoted(shape.keys.metadata)
    envelope = [CHANGE] if keys.has_envelope else []
    names = list(dict.fromkeys([*keys.columns, *keys.order_by, *envelope, keys.metadata]))
    keyed = events.withColumn(_TOLD, F.struct(*[F.col(quoted(name)) for name in names]))
    keyed = keyed.withColumn(_PLACED, F.col(_TOLD))
    of_topic = Window.partitionBy(*shape.key_names, f"{metadata}.topic_id")
    if keys.has_order:
        told = [F.expr(each) for each in keys.told(_TOLD)]
        own_order = ", ".join([*keys.own_order(_TOLD), keys.place(_TOLD)[2]])
        own = F.when(told[0].isNotNull(), F.expr(f"struct({own_order})"))
        before = Window.partitionBy(*shape.key_names, f"{metadata}.topic_id", f"{metadata}.partition")
        by_offset = before.orderBy(f"{metadata}.offset")
        # A tombstone deletes what a record of its key told before it.
        of_key = ~is_closing(keys)
        by_key = [F.when(of_key, each) for each in told]
        newest = told_before(by_key, F.col(DELETED), F.when(of_key, own), by_offset, has_envelope=keys.has_envelope)
        keyed = keyed.withColumn(_BEFORE, newest)
        order = [F.coalesce(each, F.col(_BEFORE)[f"_{number}"]) for number, each in enumerate(told)]
        keyed = keyed.withColumn(_PLACED, F.struct(*with_order(_TOLD, names, keys, order)))
        says_nothing = F.col(DELETED) & told[0].isNull() & (order[0].isNull() | F.col(_BEFORE)["is_gone"])
        keyed = keyed.filter(F.col(STORED).isNotNull() | ~F.coalesce(says_nothing, F.lit(False)))
    is_todays, partition, offset = keys.place(_PLACED)
    # Of two topics that were deleted, the one whose records are older was there before.
    topic = F.min(f"{metadata}.timestamp").over(of_topic)
    order_of = F.struct(
        *[F.expr(each).alias(f"_{number}") for number, each in enumerate([*keys.own_order(_PLACED), is_todays])],
        topic.alias("topic"), F.expr(partition).alias("partition"), F.expr(offset).alias("offset"),
    )  # fmt: skip
    return keyed.withColumn(_ORDER, order_of)


def _is_one(shape: Shape) -> bool:
    """Return whether one column tells the order."""
    return len(shape.keys.order_by) == 1 and not shape.keys.has_envelope


def _time(shape: Shape) -> Column:
    """Return from when on an event counts, as far as it says so itself."""
    if shape.order_column is not None:
        return F.col(_PLACED)[shape.order_column]
    told = [F.col(EVENT)["at"], F.col(f"{quoted(shape.keys.metadata)}.timestamp"), F.expr(_EPOCH)]
    if not _is_one(shape):
        return F.when(~_is_remembered(), F.coalesce(*told))
    # Text that is a time.
    text = [F.expr(shape.keys.own_order(_PLACED)[0])] if shape.keys.order_by[0] in shape.keys.texts else []
    return F.coalesce(*text, *told)


def _is_remembered() -> Column:
    """Return whether an event is a delete that was remembered when the history began: when that was isn't known."""
    return F.col(DELETED) & F.col(EVENT)["kept"].isNull()


def _ended(shape: Shape, following: Column) -> Column:
    """Return from when on an event counts, given when the next one of its key does.

    A delete without an order of its own is placed behind what came before it. When that was, Kafka knows, where the
    order is one of times; but what is known to be newer wasn't before it.
    """
    time, kind = F.col(_TIME), shape.valid_type
    if isinstance(kind, T.NumericType):
        return time
    is_untold = F.col(DELETED) & F.col(_TOLD)[shape.keys.order_by[0]].isNull() if _is_one(shape) else _is_remembered()
    about = F.coalesce(F.col(EVENT)["at"], F.col(f"{quoted(shape.keys.metadata)}.timestamp")).cast(kind)
    return F.when(is_untold, F.greatest(time, F.least(about, following))).otherwise(time)


def _filled(timed: DataFrame, shape: Shape, until_now: WindowSpec) -> DataFrame:
    """Give events the values that they left as they were: those of the newest event before that tells them.

    Behind a delete there is nothing that could be left.
    """
    if not shape.may_lack:
        return timed
    told = (*shape.keys.columns, *shape.keys.order_by)
    names = [name for name in shape.values if name not in told]
    takes_away = F.col(DELETED) & F.lit(not shape.keys.is_soft)
    kept, span = F.col(EVENT)["kept"], F.col(_SPAN).alias("span")
    found = {}
    for name in names:
        value = F.col(quoted(name))
        keeps = F.coalesce(F.array_contains(kept, shape.ids[name]), F.lit(False))
        tells = F.when(~keeps & ~takes_away, F.struct(span, value.alias("value")))
        last = F.last(tells, ignorenulls=True).over(until_now)
        found[name] = F.when(~keeps, value).otherwise(F.when(last["span"] == F.col(_SPAN), last["value"]))
    return timed.select(*[found.get(name, F.col(quoted(name))).alias(name) for name in timed.columns])
