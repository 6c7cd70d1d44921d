"""Between which values of an upstream table's columns the rows of some keys lie, so that other files aren't read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import sqlglot
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from kafka_lake.lake.catalog import quoted

Value = int | str | date | datetime
_UNITS = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(days=7),
    "month": timedelta(days=31),
    "quarter": timedelta(days=92),
    "year": timedelta(days=366),
}
_DAY = timedelta(days=1)
_CLOCK_CHANGES = timedelta(hours=3)
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Bound:
    """Where the values of a column lie, both ends included.

    Args:
        column: Of the upstream table.
        low: None if there is no value at all.
        high: Likewise.
        nulls: Whether there are nulls, too.
    """

    column: str
    low: Value | None
    high: Value | None
    nulls: bool


@dataclass(frozen=True)
class Source:
    """The column that a key's expression is made of.

    Args:
        column: Of the upstream table.
        before: By how much its values may be less than the key.
        after: By how much they may be greater.
        of_date: Whether the key is a date, and the column a timestamp.
    """

    column: str
    before: timedelta = timedelta()
    after: timedelta = timedelta()
    of_date: bool = False


def source_of(expression: str) -> Source | None:
    """Return the column that bounds a key's expression; None if none is known. Pure.

    >>> source_of("store_id"), source_of("upper(store_id)")
    (Source(column='store_id', before=datetime.timedelta(0), after=datetime.timedelta(0), of_date=False), None)
    """
    tree = sqlglot.parse_one(expression, read="spark")
    if isinstance(tree, exp.Column) and not tree.table:
        return Source(tree.name)
    inner = tree.this
    if not isinstance(inner, exp.Column) or inner.table:
        return None
    if isinstance(tree, exp.TimestampTrunc):
        unit = _UNITS.get(str(tree.args["unit"].name).lower())
        return Source(inner.name, after=unit + _CLOCK_CHANGES) if unit else None
    is_cast = isinstance(tree, exp.Cast) and tree.to.this == exp.DataType.Type.DATE
    if is_cast or (isinstance(tree, exp.TsOrDsToDate) and not tree.args.get("format")):
        # In whatever time zone.
        return Source(inner.name, before=_DAY, after=2 * _DAY, of_date=True)
    return None


def bounds_of(keys: DataFrame, names: Sequence[tuple[str, str]], columns: T.StructType) -> tuple[Bound, ...]:
    """Return where the rows of some keys lie in an upstream table; asks Spark for the least and the greatest keys.

    Args:
        keys: The keys.
        names: Of each the expression, and the column of ``keys`` that has it.
        columns: Of the upstream table.
    """
    kinds = {field.name.lower(): field for field in columns}
    wanted = [
        (source, key, kinds[source.column.lower()].dataType)
        for expression, key in names
        if (source := source_of(expression)) is not None
        and source.column.lower() in kinds
        and _is_known(source, keys.schema[key].dataType, kinds[source.column.lower()].dataType)
    ]
    if not wanted:
        return ()
    figures = [
        each
        for number, (_, key, _) in enumerate(wanted)
        for each in (
            _plain(F.min(key), keys.schema[key].dataType).alias(f"low{number}"),
            _plain(F.max(key), keys.schema[key].dataType).alias(f"high{number}"),
            F.coalesce(F.max(F.col(key).isNull()), F.lit(False)).alias(f"nulls{number}"),
        )
    ]
    row = keys.agg(*figures).collect()[0]
    try:
        return tuple(
            Bound(
                source.column,
                _moved(row[f"low{number}"], -source.before, kind),
                _moved(row[f"high{number}"], source.after, kind),
                bool(row[f"nulls{number}"]),
            )
            for number, (source, _, kind) in enumerate(wanted)
        )
    except OverflowError:
        # Times that Python doesn't know.
        return ()


def _is_known(source: Source, key: T.DataType, column: T.DataType) -> bool:
    if source.of_date:
        return isinstance(key, T.DateType) and isinstance(column, T.TimestampType | T.DateType)
    if source.after:
        return isinstance(key, T.TimestampType) and isinstance(column, T.TimestampType)
    return type(key) is type(column) and isinstance(column, (*_WHOLE, T.StringType, T.DateType, T.TimestampType))


def _plain(value: Column, kind: T.DataType) -> Column:
    return F.unix_micros(value) if isinstance(kind, T.TimestampType) else value


def _moved(value: int | str | date | None, by: timedelta, column: T.DataType) -> Value | None:
    """Return a bound of a key as one of its column."""
    if value is None:
        return None
    if isinstance(column, T.TimestampType):
        if isinstance(value, int):
            return _EPOCH + timedelta(microseconds=value) + by
        assert isinstance(value, date), "a timestamp's key is one or a date"
        return datetime(value.year, value.month, value.day, tzinfo=UTC) + by
    if isinstance(value, date):
        return value + by
    return value


def within(bounds: Sequence[Bound]) -> Column:
    """Return whether a row lies within all bounds."""
    found = F.lit(True)
    for each in bounds:
        column = F.col(quoted(each.column))
        inside = F.lit(False)
        if each.low is not None and each.high is not None:
            inside = (column >= _literal(each.low)) & (column <= _literal(each.high))
        found = found & ((inside | column.isNull()) if each.nulls else inside)
    return found


def _literal(value: Value) -> Column:
    if isinstance(value, datetime):
        return F.timestamp_micros(F.lit((value - _EPOCH) // timedelta(microseconds=1)))
    return F.lit(value)


def texts(bounds: Sequence[Bound]) -> Iterator[tuple[str, str, str]]:
    """Yield column, low and high of those bounds that leave nulls out, as PyIceberg reads them."""
    for each in bounds:
        if each.low is not None and each.high is not None and not each.nulls:
            low, high = (v.isoformat() if isinstance(v, date) else str(v) for v in (each.low, each.high))
            yield each.column, low, high
