"""Which rows of a derived table come and which go, by how it is written, as lazy frames."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.frames import Frames, place
from kafka_lake.derive.plan import DerivePlan, ranges_by_topic, topic_of
from kafka_lake.derive.query import parsed_key
from kafka_lake.derive.record import APPEND, MERGE, REBUILD, REWRITE
from kafka_lake.lake.catalog import literal, quoted

_KEY = "kafka_lake_key_"
_OWN = "kafka_lake_own_key_"
_NUMBER = "kafka_lake_number"
_ORDER = "kafka_lake_order"
_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


@dataclass(frozen=True)
class Computed:
    """The rows of one commit."""

    rows: DataFrame
    kind: str
    keys: DataFrame | None = None
    again: Mapping[str, Sequence[OffsetRange]] = field(default_factory=dict)
    candidates: bool = False


def compute(frames: Frames, spec: DerivedTable, plan: DerivePlan) -> Computed:
    """Return what a commit does to the rows.

    Raises:
        ConfigurationError: If the query doesn't go with the tables that it reads.
        TableError: If rows have come to an upstream table that name no record.
    """
    if plan.full:
        rows = frames.query(frames.every())
        kind = APPEND if plan.is_first else REBUILD
        return Computed(newest(rows, spec) if spec.write == "upsert" else rows, kind)
    by_topic = ranges_by_topic({name: frames.ranges(name) for name in plan.upstream}, plan.upstream)
    again = {name: by_topic.get(topic_of(each.identity), ()) for name, each in plan.upstream.items()}
    if spec.write == "aggregate":
        touched = frames.kept(_touched(frames, spec, again))
        return Computed(of_keys(frames, spec, touched), MERGE, keys=touched, again=again)
    rows = frames.query({name: frames.new(name, again[name]) for name in plan.upstream})
    if spec.write == "append":
        return Computed(rows, REWRITE if by_topic else APPEND, again=again)
    if not by_topic:
        return Computed(newest(rows, spec), MERGE, candidates=True)
    # The table itself has the keys of rows that are gone by now.
    gone = [frames.made_of(name, each) for name, each in again.items() if each]
    keys = [_selected(each, spec) for each in (rows, *gone)]
    touched = frames.kept(reduce(DataFrame.union, keys).distinct())
    rows = newest(having(frames.query(frames.every()), touched, spec), spec)
    return Computed(rows, MERGE, keys=touched, again=again)


def _touched(frames: Frames, spec: DerivedTable, again: Mapping[str, Sequence[OffsetRange]]) -> DataFrame:
    """Return the keys of rows that are new, have changed, or have gone."""
    rows = [frames.new(name, ranges) for name, ranges in again.items()]
    rows += [frames.before(name, ranges) for name, ranges in again.items() if ranges]
    names = key_names(spec)
    with frames.explained():
        keys = [each.select(*[F.expr(text).alias(names[name]) for name, text in spec.key.items()]) for each in rows]
    return reduce(DataFrame.union, keys).distinct()


def _selected(rows: DataFrame, spec: DerivedTable) -> DataFrame:
    """Return the keys of rows of the derived table; a key's column may be newer than the rows."""
    there = {column.lower() for column in rows.columns}
    known = {key: F.col(quoted(n)) if n.lower() in there else F.lit(None) for n, key in key_names(spec).items()}
    return rows.select(*[column.alias(key) for key, column in known.items()])


def keys_of(rows: DataFrame, spec: DerivedTable) -> DataFrame:
    """Return the keys that rows of the derived table have, once each, by `key_names`."""
    return _selected(rows, spec).distinct()


def of_keys(frames: Frames, spec: DerivedTable, keys: DataFrame) -> DataFrame:
    """Return what the query gives for the upstream rows of some keys alone."""
    own = {name: f"{_OWN}{number}" for number, name in enumerate(spec.key)}
    same = [F.col(own[name]).eqNullSafe(F.col(key)) for name, key in key_names(spec).items()]
    read = {}
    with frames.explained():
        bounds = [_Bound.of(keys, key, own[name], spec.key[name]) for name, key in key_names(spec).items()]
        for name, rows in frames.every().items():
            near = rows.filter(" AND ".join(["true", *(each.of_source for each in bounds)]))
            # As columns, since Spark knows window(…) in a projection alone.
            found = near.select("*", *[F.expr(text).alias(own[each]) for each, text in spec.key.items()])
            found = found.filter(" AND ".join(["true", *(each.of_key for each in bounds)]))
            read[name] = found.join(keys, _all(same), "left_semi").select(*map(F.col, map(quoted, rows.columns)))
    return frames.query(read)


@dataclass(frozen=True)
class _Bound:
    """Conditions between which the rows of some keys lie, as SQL: by them, Iceberg leaves files out."""

    of_key: str = "true"
    of_source: str = "true"

    @classmethod
    def of(cls, keys: DataFrame, key: str, own: str, text: str) -> "_Bound":
        kind = keys.schema[key].dataType
        if not isinstance(kind, (*_NUMBERS, T.StringType, T.DateType, T.TimestampType)):
            return cls()
        # Python knows no days before the year 1 or after 9999.
        as_number = {T.DateType: F.unix_date, T.TimestampType: F.unix_micros}.get(type(kind), lambda value: value)
        figures = as_number(F.min(key)), as_number(F.max(key)), F.max(F.col(key).isNull())
        ((low, high, nulls),) = keys.agg(*figures).collect()
        or_null = " OR {0} IS NULL" if nulls else ""
        if low is None:
            return cls(f"{own} IS NULL" if nulls else "false")
        least, most = (_literal(each, kind) for each in (low, high))
        of_key = f"(({own} >= {least} AND {own} <= {most}){or_null.format(own)})"
        tree = parsed_key(key, text)
        if not isinstance(tree, exp.TimestampTrunc) or not isinstance(tree.this, exp.Column) or tree.this.table:
            return cls(of_key)
        # A truncated time isn't later than the time, but for changes of the clock.
        source = quoted(tree.this.name)
        return cls(of_key, f"({source} >= {least} - INTERVAL 3 HOURS{or_null.format(source)})")


def _literal(value: int | str, kind: T.DataType) -> str:
    if isinstance(value, str):
        return literal(value)
    function = {T.DateType: "date_from_unix_date", T.TimestampType: "timestamp_micros"}.get(type(kind), "")
    return f"{function}({value})"


def key_names(spec: DerivedTable) -> dict[str, str]:
    """Return the names that the key's columns have in frames of keys, by the columns."""
    return {name: f"{_KEY}{number}" for number, name in enumerate(spec.key)}


def having(rows: DataFrame, keys: DataFrame, spec: DerivedTable, how: str = "left_semi") -> DataFrame:
    """Return the rows of the table that have one of some keys, or with ``left_anti`` none."""
    same = [F.col(quoted(name)).eqNullSafe(F.col(key)) for name, key in key_names(spec).items()]
    return rows.join(keys, _all(same), how)


def _all(conditions: Sequence[Column]) -> Column:
    return reduce(Column.__and__, conditions)


def newest(rows: DataFrame, spec: DerivedTable) -> DataFrame:
    """Return the newest row of each key: by ``order_by``, then by Kafka's offset."""
    places = [place(each).desc_nulls_last() for each in ("offset", "partition")]
    order = [*[F.col(quoted(name)).desc_nulls_last() for name in spec.order_by], *places]
    window = Window.partitionBy(*[F.col(quoted(name)) for name in spec.key]).orderBy(*order)
    return rows.withColumn(_NUMBER, F.row_number().over(window)).filter(F.col(_NUMBER) == 1).drop(_NUMBER)


def not_older(rows: DataFrame, table: DataFrame, spec: DerivedTable) -> DataFrame:
    """Return those of the newest rows of keys that aren't older than the row that a table has of their key."""
    there = table.select(
        *[F.col(quoted(name)).alias(key) for name, key in key_names(spec).items()], _order(spec).alias(_ORDER)
    )
    same = [F.col(quoted(name)).eqNullSafe(F.col(key)) for name, key in key_names(spec).items()]
    joined = rows.join(there, _all(same), "left")
    # Nulls are least in a struct's order, as they are among the newest rows of a batch.
    found = joined.filter(F.col(_ORDER).isNull() | (_order(spec) >= F.col(_ORDER)))
    return found.drop(*key_names(spec).values(), _ORDER)


def _order(spec: DerivedTable) -> Column:
    columns = [*[F.col(quoted(name)) for name in spec.order_by], place("offset"), place("partition")]
    return F.struct(*[each.alias(f"o{number}") for number, each in enumerate(columns)])
