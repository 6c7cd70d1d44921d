"""Which rows of a derived table come and which go, by how it is written, as lazy frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.frames import Frames, place
from kafka_lake.derive.plan import DerivePlan
from kafka_lake.derive.query import parsed_key
from kafka_lake.derive.upstream import APPEND, MERGE, REBUILD, REWRITE
from kafka_lake.lake.catalog import literal, quoted

_KEY = "kafka_lake_key_"
_OWN = "kafka_lake_own_key_"
_NUMBER = "kafka_lake_number"
_ORDER = "kafka_lake_order"
_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


@dataclass(frozen=True)
class Computed:
    """The rows of one commit.

    Args:
        keys: The keys whose rows go; None if rows aren't replaced by key, or those of ``rows`` are meant.
        again: Offsets before the position that are derived again.
        candidates: Whether a row comes only if the table has no newer one of its key.
    """

    rows: DataFrame
    kind: str
    keys: DataFrame | None = None
    again: Sequence[OffsetRange] = ()
    candidates: bool = False


def compute(frames: Frames, spec: DerivedTable, plan: DerivePlan) -> Computed:
    """Return what a commit does to the rows."""
    if plan.full:
        rows = frames.query()
        kind = APPEND if plan.is_first else REBUILD
        return Computed(newest(rows, spec) if spec.write == "upsert" else rows, kind)
    again = frames.ranges()
    if spec.write == "aggregate":
        touched = frames.kept(_touched(frames, spec, again))
        return Computed(of_keys(frames, spec, touched), MERGE, keys=touched, again=again)
    rows = frames.query(frames.new(again))
    if spec.write == "append":
        return Computed(rows, REWRITE if again else APPEND, again=again)
    if not again:
        return Computed(newest(rows, spec), MERGE, candidates=True)
    # The table itself has the keys of rows that are gone by now.
    touched = frames.kept(keys_of(rows, spec).union(keys_of(frames.made_of(again), spec)).distinct())
    rows = newest(having(frames.query(), touched, spec), spec)
    return Computed(rows, MERGE, keys=touched, again=again)


def _touched(frames: Frames, spec: DerivedTable, again: Sequence[OffsetRange]) -> DataFrame:
    """Return the keys of rows that are new, have changed, or have gone."""
    names = key_names(spec)
    keys = [F.expr(text).alias(names[name]) for name, text in spec.key.items()]
    with frames.explained():
        found = frames.new(again).select(*keys)
        return (found.union(frames.before(again).select(*keys)) if again else found).distinct()


def keys_of(rows: DataFrame, spec: DerivedTable) -> DataFrame:
    """Return the keys that rows of the derived table have, once each, by `key_names`."""
    # A key's column may be newer than the rows.
    there = {column.lower() for column in rows.columns}
    known = {key: F.col(quoted(n)) if n.lower() in there else F.lit(None) for n, key in key_names(spec).items()}
    return rows.select(*[column.alias(key) for key, column in known.items()]).distinct()


def of_keys(frames: Frames, spec: DerivedTable, keys: DataFrame) -> DataFrame:
    """Return what the query gives for the upstream rows of some keys alone."""
    own = {name: f"{_OWN}{number}" for number, name in enumerate(spec.key)}
    same = _all([F.col(own[name]).eqNullSafe(F.col(key)) for name, key in key_names(spec).items()])
    with frames.explained():
        bounds = [_bounds(keys, key, own[name], spec.key[name]) for name, key in key_names(spec).items()]
        of_source, of_key = (" AND ".join(each) for each in zip(*bounds, strict=True))
        rows = frames.whole()
        # As columns, since Spark knows window(…) in a projection alone.
        found = rows.filter(of_source).select("*", *[F.expr(text).alias(own[name]) for name, text in spec.key.items()])
        found = found.filter(of_key).join(keys, same, "left_semi").select(*map(F.col, map(quoted, rows.columns)))
    return frames.query(found)


def _bounds(keys: DataFrame, key: str, own: str, text: str) -> tuple[str, str]:
    """Return SQL conditions on the upstream columns, and on the key, that the rows of some keys meet.

    By them, Iceberg leaves files out.
    """
    kind = keys.schema[key].dataType
    if not isinstance(kind, (*_NUMBERS, T.StringType, T.DateType, T.TimestampType)):
        return "true", "true"
    # Python knows no days before the year 1 or after 9999.
    as_number = {T.DateType: F.unix_date, T.TimestampType: F.unix_micros}.get(type(kind), lambda value: value)
    figures = as_number(F.min(key)), as_number(F.max(key)), F.max(F.col(key).isNull())
    ((low, high, nulls),) = keys.agg(*figures).collect()
    or_null = " OR {0} IS NULL" if nulls else ""
    if low is None:
        return "true", f"{own} IS NULL" if nulls else "false"
    least, most = (_literal(each, kind) for each in (low, high))
    of_key = f"(({own} >= {least} AND {own} <= {most}){or_null.format(own)})"
    tree = parsed_key(key, text)
    if not isinstance(tree, exp.TimestampTrunc) or not isinstance(tree.this, exp.Column) or tree.this.table:
        return "true", of_key
    # A truncated time isn't later than the time, but for changes of the clock.
    source = quoted(tree.this.name)
    return f"({source} >= {least} - INTERVAL 3 HOURS{or_null.format(source)})", of_key


def _literal(value: int | str, kind: T.DataType) -> str:
    if isinstance(value, str):
        return literal(value)
    function = {T.DateType: "date_from_unix_date", T.TimestampType: "timestamp_micros"}.get(type(kind), "")
    return f"{function}({value})"


def key_names(spec: DerivedTable) -> dict[str, str]:
    """Return the names that the key's columns have in frames of keys, by the columns."""
    return {name: f"{_KEY}{number}" for number, name in enumerate(spec.key)}


def _same_key(spec: DerivedTable) -> Column:
    return _all([F.col(quoted(name)).eqNullSafe(F.col(key)) for name, key in key_names(spec).items()])


def having(rows: DataFrame, keys: DataFrame, spec: DerivedTable, how: str = "left_semi") -> DataFrame:
    """Return the rows of the table that have one of some keys, or with ``left_anti`` none."""
    return rows.join(keys, _same_key(spec), how)


def _all(conditions: Sequence[Column]) -> Column:
    return reduce(Column.__and__, conditions)


def newest(rows: DataFrame, spec: DerivedTable) -> DataFrame:
    """Return the newest row of each key: by ``order_by``, then by Kafka's offset."""
    window = Window.partitionBy(*[F.col(quoted(name)) for name in spec.key]).orderBy(_order(spec).desc())
    return rows.withColumn(_NUMBER, F.row_number().over(window)).filter(F.col(_NUMBER) == 1).drop(_NUMBER)


def not_older(rows: DataFrame, table: DataFrame, spec: DerivedTable) -> DataFrame:
    """Return those of the newest rows of keys that aren't older than the row that a table has of their key."""
    keys = [F.col(quoted(name)).alias(key) for name, key in key_names(spec).items()]
    joined = rows.join(table.select(*keys, _order(spec).alias(_ORDER)), _same_key(spec), "left")
    found = joined.filter(F.col(_ORDER).isNull() | (_order(spec) >= F.col(_ORDER)))
    return found.drop(*key_names(spec).values(), _ORDER)


def _order(spec: DerivedTable) -> Column:
    # Nulls are least in a struct's order.
    columns = [*[F.col(quoted(name)) for name in spec.order_by], place("offset"), place("partition")]
    return F.struct(*[each.alias(f"o{number}") for number, each in enumerate(columns)])
