"""Spark frames of a commit: the rows that its query reads, and the rows that it writes and replaces."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from kafka_lake.catalog.lake_catalog import literal, quoted
from kafka_lake.common.offsets import OffsetRange, TopicIdentity, joined_ranges
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.config.query import over_views, parsed_key, with_origin
from kafka_lake.derived.engine import Engine
from kafka_lake.derived.plan import DerivePlan, Pinned
from kafka_lake.derived.upstream import APPEND, MERGE, REBUILD, REWRITE
from kafka_lake.engine.frames import added_between, at_version, cached
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.formats.rows import load_transform
from kafka_lake.writers.frames import shaped

MAX_RANGES = 1000
# An untyped NULL has the type void. In the text of a struct, a colon follows the names of fields.
_NOT_STORED = re.compile(r"(?:^|[<,:])((?:void|variant|interval|time\()[^,:<>]*)(?=[,>]|$)")


def of_topic(identity: TopicIdentity) -> str:
    """Return the SQL condition that a row is from the current topic."""
    origin = quoted(METADATA_COLUMN)
    if identity.topic_id:
        return f"{origin}.`topic_id` = {literal(identity.topic_id)}"
    return f"{origin}.`topic_id` IS NULL AND {origin}.`topic` = {literal(identity.topic)}"


def within(identity: TopicIdentity, ranges: Iterable[OffsetRange]) -> str:
    """Return the SQL condition that a row is from some offsets of a topic. As SQL, many ORs are a flat tree."""
    partition, offset = (f"{quoted(METADATA_COLUMN)}.`{name}`" for name in ("partition", "offset"))
    parts = [f"({partition} = {r.partition} AND {offset} >= {r.start} AND {offset} < {r.end})" for r in ranges]
    return f"({of_topic(identity)} AND ({' OR '.join(parts) or 'false'}))"


def place(field: str) -> Column:
    """Return a field of the metadata column."""
    return F.col(f"{quoted(METADATA_COLUMN)}.{quoted(field)}")


class Frames:
    """Frames of a commit; views and cached frames are dropped when ``held`` is closed."""

    def __init__(self, engine: Engine, spec: DerivedTable, plan: DerivePlan, held: ExitStack) -> None:
        self._engine = engine
        self._spec = spec
        self._plan = plan
        self._held = held

    @property
    def _fact(self) -> Pinned:
        (fact,) = self._plan.upstream.values()
        return fact

    @property
    def identity(self) -> TopicIdentity:
        """Return the topic of the table of ``from``."""
        return self._fact.identity

    def whole(self, snapshot: int | None = None) -> DataFrame:
        """Return the rows of the table of ``from``, by default those of the pinned snapshot."""
        return self._rows(self._fact, self._fact.read.snapshot if snapshot is None else snapshot)

    def new(self, ranges: Sequence[OffsetRange] = ()) -> DataFrame:
        """Return the new rows of the table of ``from``, and those of some offsets."""
        fact = self._fact
        since = fact.changes.new_since if fact.changes else {}
        is_new = F.lit(True)
        if since:
            is_new = place("partition") > max(since)
            for partition, offset in since.items():
                is_new = is_new | ((place("partition") == partition) & (place("offset") >= offset))
        is_new = is_new & F.expr(of_topic(fact.identity))
        return self.whole().filter(is_new | F.expr(within(fact.identity, ranges)) if ranges else is_new)

    def before(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the rows of some offsets as they were last read."""
        fact = self._fact
        if fact.before is None or fact.before.snapshot is None:
            return self.whole().limit(0)
        # Columns that were added later are null.
        return shaped(self.whole(fact.before.snapshot).filter(within(fact.identity, ranges)), self.whole().schema)

    def ranges(self) -> tuple[OffsetRange, ...]:
        """Return earlier offsets whose rows may have changed; queries Spark if snapshots don't show them."""
        fact = self._fact
        ranges = list(fact.changes.ranges) if fact.changes else []
        for before, after in fact.changes.added if fact.changes else ():
            table = self._engine.catalog.spark_name(fact.identifier)
            rows = _renamed(added_between(self._engine.spark(), table, before, after), fact)
            if (places := places_of(rows, fact.identity)) is None:
                raise TableError(
                    f"Table {self._spec.name}: snapshot {after} of {'.'.join(fact.identifier)} adds rows that "
                    "aren't records of its topic.",
                    f"Run `kafka-lake rebuild {self._spec.name}` to recompute everything once.",
                )
            ranges += places
        exact = tuple(joined_ranges(filter(len, ranges), 1))
        return exact if len(exact) <= MAX_RANGES else tuple(joined_ranges(exact, None))

    def made(self, snapshot: int | None = None) -> DataFrame:
        """Return the rows of the derived table, by default those of the head."""
        version = self._plan.head if snapshot is None else snapshot
        assert version is not None, "the table has a first snapshot"
        return at_version(self._engine.spark(), self._engine.catalog.spark_name(self._spec.identifier), version)

    def made_of(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the derived table's rows of some offsets."""
        return self.made().filter(within(self._fact.identity, ranges))

    def query(self, rows: DataFrame | None = None) -> DataFrame:
        """Return the query's result for these rows of the table of ``from``, by default for all."""
        spec = self._spec
        read = {name: self._rows(pinned, pinned.read.snapshot) for name, pinned in self._plan.upstream.items()}
        if rows is not None:
            read = dict.fromkeys(read, rows)
        for name, pinned in self._plan.joined.items():
            dimension = self._rows(pinned, pinned.read.snapshot)
            read[name] = dimension.drop(METADATA_COLUMN) if pinned.origin else dimension
        with self.explained():
            result = self._computed(read)
            names = [name.lower() for name in result.columns]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(
                f"Table {spec.name}: the query returns column {twice[0]} twice; names that differ only in case clash.",
                "Rename one of them with AS.",
            )
        needed = [*spec.key, *spec.order_by, *([METADATA_COLUMN] if spec.is_row_wise else [])]
        if missing := [name for name in needed if name.lower() not in names]:
            raise ConfigurationError(
                f"Table {spec.name}: the query returns no column {missing[0]}, only {', '.join(result.columns)}.",
                f"Select it under that name, or correct key: or order_by:. {METADATA_COLUMN} identifies a row's "
                "record.",
            )
        for field in result.schema:
            if unsupported := _NOT_STORED.search(field.dataType.simpleString()):
                raise ConfigurationError(
                    f"Table {spec.name}: column {field.name} has type {unsupported[1]}, which no table can store.",
                    "CAST it to another type.",
                )
        return result

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Translate Spark's errors about the query."""
        try:
            yield
        except AnalysisException as error:
            reason = next(filter(None, str(error).splitlines()), "").partition(" SQLSTATE")[0].rstrip(" ;.")
            raise ConfigurationError(
                f"Table {self._spec.name}: the query or key: doesn't fit the tables that it reads: {reason}.",
                "Correct sql:, transform: or key:. If a column of an upstream table was renamed, run `kafka-lake "
                "rebuild`.",
            ) from error

    def kept(self, frame: DataFrame) -> DataFrame:
        """Cache a frame until the commit ends."""
        return cached(frame, self._held)

    def _computed(self, read: Mapping[str, DataFrame]) -> DataFrame:
        spec = self._spec
        if spec.transform is not None:
            result = load_transform(spec.transform)(dict(read))
            if not isinstance(result, DataFrame) and not hasattr(result, "writeTo"):
                raise ConfigurationError(
                    f"Table {spec.name}: transform {spec.transform} returned {type(result).__name__}, not a DataFrame.",
                    "Return the table's DataFrame.",
                )
            return result
        assert spec.sql is not None, "there is a query or a transform"
        sql = with_origin(spec.sql, next(iter(spec.upstream))) if spec.is_row_wise else spec.sql
        spark = self._engine.spark()
        views = {name: f"kafka_lake_{uuid4().hex}" for name in read}
        for name, view in views.items():
            read[name].createOrReplaceTempView(view)
            self._held.callback(spark.catalog.dropTempView, view)
        frame: DataFrame = spark.sql(over_views(sql, views))
        return frame

    def _rows(self, pinned: Pinned, snapshot: int | None) -> DataFrame:
        assert snapshot is not None, "a table without a snapshot isn't read"
        table = self._engine.catalog.spark_name(pinned.identifier)
        return _renamed(at_version(self._engine.spark(), table, snapshot), pinned)


def places_of(rows: DataFrame, identity: TopicIdentity) -> list[OffsetRange] | None:
    """Return the exact offsets of rows; None if some rows aren't from the topic."""
    if not rows.filter(f"NOT coalesce({of_topic(identity)}, false)").isEmpty():
        return None
    places = rows.select(place("partition"), place("offset")).distinct()
    number = F.row_number().over(Window.partitionBy("partition").orderBy("offset"))
    grouped = places.select("partition", "offset", (F.col("offset") - number).alias("island"))
    ranges = grouped.groupBy("partition", "island").agg(F.min("offset"), F.max("offset") + 1).drop("island")
    return [OffsetRange(*row) for row in ranges.collect()]


def _renamed(rows: DataFrame, pinned: Pinned) -> DataFrame:
    return rows if pinned.origin in (None, METADATA_COLUMN) else rows.withColumnRenamed(pinned.origin, METADATA_COLUMN)


_KEY = "kafka_lake_key_"
_OWN = "kafka_lake_own_key_"
_NUMBER = "kafka_lake_number"
_ORDER = "kafka_lake_order"
_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


@dataclass(frozen=True)
class Computed:
    """The rows of one commit.

    Args:
        keys: Keys whose rows are replaced; None for the keys of ``rows``, or if rows aren't replaced by key.
        again: Earlier offsets whose rows are recomputed.
        candidates: Whether a row is written only if the table has no newer row with its key.
    """

    rows: DataFrame
    kind: str
    keys: DataFrame | None = None
    again: Sequence[OffsetRange] = ()
    candidates: bool = False


def compute(frames: Frames, spec: DerivedTable, plan: DerivePlan) -> Computed:
    """Return the rows of a commit by the table's write mode."""
    if plan.full:
        rows = frames.query()
        kind = APPEND if plan.is_first else REBUILD
        return Computed(newest(rows, spec, frames.identity) if spec.write == "upsert" else rows, kind)
    again = frames.ranges()
    if spec.write == "aggregate":
        touched = frames.kept(_touched(frames, spec, again))
        return Computed(of_keys(frames, spec, touched), MERGE, keys=touched, again=again)
    rows = frames.query(frames.new(again))
    if spec.write == "append":
        return Computed(rows, REWRITE if again else APPEND, again=again)
    if not again:
        return Computed(newest(rows, spec, frames.identity), MERGE, candidates=True)
    # The table still has the keys of rows that are gone.
    touched = frames.kept(keys_of(rows, spec).union(keys_of(frames.made_of(again), spec)).distinct())
    rows = newest(having(frames.query(), touched, spec), spec, frames.identity)
    return Computed(rows, MERGE, keys=touched, again=again)


def _touched(frames: Frames, spec: DerivedTable, again: Sequence[OffsetRange]) -> DataFrame:
    """Return the keys of new, changed and removed rows."""
    names = key_names(spec)
    keys = [F.expr(text).alias(names[name]) for name, text in spec.key.items()]
    with frames.explained():
        new = frames.new(again).select(*keys)
        return (new.union(frames.before(again).select(*keys)) if again else new).distinct()


def keys_of(rows: DataFrame, spec: DerivedTable) -> DataFrame:
    """Return the distinct keys of rows of the derived table, named as in `key_names`."""
    # A key's column may be newer than the rows.
    existing = {column.lower() for column in rows.columns}
    columns = {key: F.col(quoted(n)) if n.lower() in existing else F.lit(None) for n, key in key_names(spec).items()}
    return rows.select(*[column.alias(key) for key, column in columns.items()]).distinct()


def of_keys(frames: Frames, spec: DerivedTable, keys: DataFrame) -> DataFrame:
    """Return the query's result for the upstream rows of some keys."""
    own = {name: f"{_OWN}{number}" for number, name in enumerate(spec.key)}
    same = _all([F.col(own[name]).eqNullSafe(F.col(key)) for name, key in key_names(spec).items()])
    with frames.explained():
        bounds = [_bounds(keys, key, own[name], spec.key[name]) for name, key in key_names(spec).items()]
        of_source, of_key = map(" AND ".join, zip(*bounds, strict=True))
        rows = frames.whole()
        # Spark allows window(…) only in a projection.
        with_keys = rows.filter(of_source).select(
            "*", *[F.expr(text).alias(own[name]) for name, text in spec.key.items()]
        )
        matching = with_keys.filter(of_key).join(keys, same, "left_semi").select(*map(F.col, map(quoted, rows.columns)))
    return frames.query(matching)


def _bounds(keys: DataFrame, key: str, own: str, text: str) -> tuple[str, str]:
    """Return SQL conditions on upstream columns, and on the key, that let Iceberg skip files."""
    kind = keys.schema[key].dataType
    if not isinstance(kind, (*_NUMBERS, T.StringType, T.DateType, T.TimestampType)):
        return "true", "true"
    # As integers, since Python's dates end with the year 9999.
    as_number = {T.DateType: F.unix_date, T.TimestampType: F.unix_micros}.get(type(kind), lambda value: value)
    aggregates = as_number(F.min(key)), as_number(F.max(key)), F.max(F.col(key).isNull())
    ((low, high, nulls),) = keys.agg(*aggregates).collect()
    or_null = " OR {0} IS NULL" if nulls else ""
    if low is None:
        return "true", f"{own} IS NULL" if nulls else "false"
    least, most = _literal(low, kind), _literal(high, kind)
    of_key = f"(({own} >= {least} AND {own} <= {most}){or_null.format(own)})"
    tree = parsed_key(key, text)
    if not isinstance(tree, exp.TimestampTrunc) or not isinstance(tree.this, exp.Column) or tree.this.table:
        return "true", of_key
    # Only a change to or from summer time makes a truncated time later than the time.
    source = quoted(tree.this.name)
    return f"({source} >= {least} - INTERVAL 3 HOURS{or_null.format(source)})", of_key


def _literal(value: int | str, kind: T.DataType) -> str:
    if isinstance(value, str):
        return literal(value)
    function = {T.DateType: "date_from_unix_date", T.TimestampType: "timestamp_micros"}.get(type(kind), "")
    return f"{function}({value})"


def key_names(spec: DerivedTable) -> dict[str, str]:
    """Return the names of the key's columns in frames of keys."""
    return {name: f"{_KEY}{number}" for number, name in enumerate(spec.key)}


def _same_key(spec: DerivedTable) -> Column:
    return _all([F.col(quoted(name)).eqNullSafe(F.col(key)) for name, key in key_names(spec).items()])


def having(rows: DataFrame, keys: DataFrame, spec: DerivedTable, how: str = "left_semi") -> DataFrame:
    """Return the rows whose key is among some keys; with ``left_anti``, the other rows."""
    return rows.join(keys, _same_key(spec), how)


def _all(conditions: Sequence[Column]) -> Column:
    return reduce(Column.__and__, conditions)


def newest(rows: DataFrame, spec: DerivedTable, identity: TopicIdentity) -> DataFrame:
    """Return the newest row of each key: by ``order_by``, then by Kafka's order."""
    order = _order(spec, identity)
    window = Window.partitionBy(*[F.col(quoted(name)) for name in spec.key]).orderBy(order.desc())
    return rows.withColumn(_NUMBER, F.row_number().over(window)).filter(F.col(_NUMBER) == 1).drop(_NUMBER)


def not_older(rows: DataFrame, table: DataFrame, spec: DerivedTable, identity: TopicIdentity) -> DataFrame:
    """Return the rows that aren't older than the table's row with their key."""
    keys, order = [F.col(quoted(name)).alias(key) for name, key in key_names(spec).items()], _order(spec, identity)
    joined = rows.join(table.select(*keys, order.alias(_ORDER)), _same_key(spec), "left")
    kept = joined.filter(F.col(_ORDER).isNull() | (order >= F.col(_ORDER)))
    return kept.drop(*key_names(spec).values(), _ORDER)


def _order(spec: DerivedTable, identity: TopicIdentity) -> Column:
    # A recreated topic begins at offset 0 again. In a struct, nulls come first.
    columns = [F.col(quoted(name)) for name in spec.order_by]
    columns += [F.expr(f"coalesce({of_topic(identity)}, false)"), place("offset"), place("partition")]
    return F.struct(*[column.alias(f"o{number}") for number, column in enumerate(columns)])
