"""The rows that a query reads, as Spark's frames: of pinned snapshots, whole, new, or of some offsets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import ConfigurationError, TableError
from kafka_lake.common.offsets import OffsetRange, TopicIdentity, joined_ranges
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import Engine
from kafka_lake.derive.plan import DerivePlan, Pinned
from kafka_lake.derive.query import ORIGIN, over_views, with_origin
from kafka_lake.ingest.decode.rows import load_transform
from kafka_lake.ingest.record_keys import added_between, at_version
from kafka_lake.lake.catalog import literal, quoted
from kafka_lake.spark.kept import kept

# Each is a condition on rows.
_MOST_RANGES = 1000


def of_topic(identity: TopicIdentity) -> str:
    """Return the condition that a row is of a topic as it is now, as SQL."""
    if identity.topic_id:
        return f"{quoted(ORIGIN)}.`topic_id` = {literal(identity.topic_id)}"
    return f"{quoted(ORIGIN)}.`topic_id` IS NULL AND {quoted(ORIGIN)}.`topic` = {literal(identity.topic)}"


def within(identity: TopicIdentity, ranges: Iterable[OffsetRange]) -> str:
    """Return the condition that a row is of some offsets of a topic, as SQL. Spark parses many ORs as a flat tree."""
    partition, offset = (f"{quoted(ORIGIN)}.`{each}`" for each in ("partition", "offset"))
    found = [f"({partition} = {r.partition} AND {offset} >= {r.start} AND {offset} < {r.end})" for r in ranges]
    return f"({of_topic(identity)} AND ({' OR '.join(found) or 'false'}))"


def place(field: str) -> Column:
    """Return a field of the column that names the record of a row."""
    return F.col(f"{quoted(ORIGIN)}.{quoted(field)}")


class Frames:
    """What a commit reads and computes.

    Args:
        engine: Of the run.
        spec: The derived table.
        plan: Of the commit.
        held: Removes views and cached frames when it is closed.
    """

    def __init__(self, engine: Engine, spec: DerivedTable, plan: DerivePlan, held: ExitStack) -> None:
        self._engine = engine
        self._spec = spec
        self._plan = plan
        self._held = held

    def whole(self, name: str, snapshot: int | None = None) -> DataFrame:
        """Return the rows of an upstream table, of the pinned snapshot unless another one is given."""
        each = self._plan.upstream[name]
        return self._rows(each, each.read.snapshot if snapshot is None else snapshot)

    def every(self) -> dict[str, DataFrame]:
        """Return the rows of all upstream tables."""
        return {name: self.whole(name) for name in self._plan.upstream}

    def new(self, name: str, ranges: Sequence[OffsetRange] = ()) -> DataFrame:
        """Return the rows of an upstream table that are new, and those of some offsets."""
        each = self._plan.upstream[name]
        since = each.changes.new_since if each.changes else {}
        found = F.lit(True)
        if since:
            found = place("partition") > max(since)
            for partition, offset in since.items():
                found = found | ((place("partition") == partition) & (place("offset") >= offset))
        found = found & F.expr(of_topic(each.identity))
        return self.whole(name).filter(found | F.expr(within(each.identity, ranges)) if ranges else found)

    def before(self, name: str, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the rows of some offsets as they were when the table was read last."""
        each = self._plan.upstream[name]
        if each.before is None or each.before.snapshot is None or not ranges:
            return self.whole(name).limit(0)
        rows = self.whole(name, each.before.snapshot).filter(within(each.identity, ranges))
        # As it is read now: columns that have come since are null there.
        there = {field.name for field in rows.schema}
        more = [field for field in self.whole(name).schema if field.name not in there]
        return rows.select("*", *[F.lit(None).cast(field.dataType).alias(field.name) for field in more])

    def ranges(self, name: str) -> tuple[OffsetRange, ...]:
        """Return the offsets before the position whose rows may have changed; asks Spark where snapshots don't say.

        Raises:
            TableError: If rows have come that name no record of the topic.
        """
        each = self._plan.upstream[name]
        found = list(each.changes.ranges) if each.changes else []
        for before, after in each.changes.added if each.changes else ():
            table = self._engine.catalog.spark_name(each.identifier)
            rows = _renamed(added_between(self._engine.spark(), table, before, after), each)
            at = [F.col(ORIGIN).getField(one).alias(one) for one in ("partition", "topic_id", "offset")]
            places = rows.select(*at).distinct()
            topics = places.select("partition", "topic_id").distinct().collect()
            if any(partition is None or (topic_id or "") != each.identity.topic_id for partition, topic_id in topics):
                raise TableError(
                    f"Table {self._spec.name}: snapshot {after} of {'.'.join(each.identifier)} adds rows that are "
                    "no records of its topic.",
                    f"Run `kafka-lake rebuild {self._spec.name}` to compute everything again once.",
                )
            found += _islands(places)
        exact = tuple(joined_ranges((one for one in found if len(one)), 1))
        return exact if len(exact) <= _MOST_RANGES else tuple(joined_ranges(exact, None))

    def made(self, snapshot: int | None = None) -> DataFrame:
        """Return the rows of the derived table, of a snapshot or of the head that the commit starts at."""
        version = self._plan.head if snapshot is None else snapshot
        assert version is not None, "the table has a first snapshot"
        return at_version(self._engine.spark(), self._engine.catalog.spark_name(self._spec.identifier), version)

    def made_of(self, name: str, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the rows that the derived table has of some offsets."""
        return self.made().filter(within(self._plan.upstream[name].identity, ranges))

    def query(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Return the result of the query.

        Raises:
            ConfigurationError: If the query doesn't go with the tables' columns, or its columns with a table.
        """
        spec = self._spec
        with self.explained():
            result = self._computed(self._with_joined(frames))
            names = [each.lower() for each in result.columns]
        if twice := sorted({each for each in names if names.count(each) > 1}):
            raise ConfigurationError(
                f"Table {spec.name}: the query gives column {twice[0]} twice; no two names may differ in case alone.",
                "Give one of them another name by AS.",
            )
        if spec.is_row_wise and ORIGIN not in result.columns:
            raise ConfigurationError(
                f"Table {spec.name}: the query's result has no column {ORIGIN}, which tells the record of a row.",
                f"Select {ORIGIN} in the query and its subqueries, or keep it in the transform's result.",
            )
        if missing := [each for each in (*spec.key, *spec.order_by) if each.lower() not in names]:
            setting = "key" if missing[0] in spec.key else "order_by"
            raise ConfigurationError(
                f"Table {spec.name}: {setting}: {missing[0]} is no column of the query's result, which has "
                f"{', '.join(result.columns)}.",
                "Select it under that name.",
            )
        for field in result.schema:
            if kind := _not_stored(field.dataType):
                why = "is always null, and has no type" if kind == "void" else f"has type {kind}, which no table has"
                inside = "" if field.dataType.simpleString() == kind else "something in "
                raise ConfigurationError(
                    f"Table {spec.name}: {inside}column {field.name} {why}.", "Give it another type by CAST."
                )
        return result

    def _with_joined(self, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        read = dict(frames)
        for name, each in self._plan.joined.items():
            rows = self._rows(each, each.read.snapshot)
            read[name] = rows.drop(ORIGIN) if each.origin else rows
        return read

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn Spark's errors about the query in the block into one that names the table."""
        try:
            yield
        except AnalysisException as error:
            reason = next(filter(None, str(error).splitlines()), "").partition(" SQLSTATE")[0].rstrip(" ;.")
            raise ConfigurationError(
                f"Table {self._spec.name}: the query or key: doesn't go with the tables that it reads: {reason}.",
                "Correct sql:, transform: or key:. If a column of an upstream table has got another name, rebuild.",
            ) from error

    def kept(self, frame: DataFrame) -> DataFrame:
        """Let Spark cache a frame that is read several times, until the commit ends."""
        return kept(frame, self._held)

    def _computed(self, read: Mapping[str, DataFrame]) -> DataFrame:
        spec = self._spec
        if spec.transform is not None:
            result = load_transform(spec.transform)(dict(read))
            if not isinstance(result, DataFrame) and not hasattr(result, "writeTo"):
                raise ConfigurationError(
                    f"Table {spec.name}: transform {spec.transform} returned {type(result).__name__}, not a DataFrame.",
                    "Return the DataFrame that the table shall hold.",
                )
            return result
        assert spec.sql is not None, "there is a query or a transform"
        sql = with_origin(spec.sql, spec.upstream) if spec.is_row_wise else spec.sql
        spark = self._engine.spark()
        views = {name: f"kafka_lake_{uuid4().hex}" for name in read}
        for name, view in views.items():
            read[name].createOrReplaceTempView(view)
            self._held.callback(spark.catalog.dropTempView, view)
        frame: DataFrame = spark.sql(over_views(sql, views))
        return frame

    def _rows(self, each: Pinned, snapshot: int | None) -> DataFrame:
        assert snapshot is not None, "a table without a snapshot isn't read"
        return _renamed(
            at_version(self._engine.spark(), self._engine.catalog.spark_name(each.identifier), snapshot), each
        )


def _islands(places: DataFrame) -> list[OffsetRange]:
    """Return exactly the offsets of records: rows between them may have expired, and what was made of them stays.

    If these are more than some thousand ranges, one range covers all of a partition.
    """
    number = F.row_number().over(Window.partitionBy("partition").orderBy("offset"))
    grouped = places.select("partition", "offset", (F.col("offset") - number).alias("island"))
    first, end = F.min("offset"), F.max("offset") + 1
    found = grouped.groupBy("partition", "island").agg(first, end).drop("island").limit(_MOST_RANGES + 1).collect()
    if len(found) > _MOST_RANGES:
        found = places.groupBy("partition").agg(first, end).collect()
    return [OffsetRange(*each) for each in found]


def _not_stored(kind: T.DataType) -> str:
    """Return the type, within a type, that derived tables can't have; empty if there is none."""
    inner: list[T.DataType] = []
    if isinstance(kind, T.StructType):
        inner = [field.dataType for field in kind]
    elif isinstance(kind, T.ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, T.MapType):
        inner = [kind.keyType, kind.valueType]
    name = kind.simpleString()
    own = name if name in ("void", "variant", "interval") or name.startswith(("interval ", "time(")) else ""
    return next(filter(None, (own, *map(_not_stored, inner))), "")


def _renamed(rows: DataFrame, each: Pinned) -> DataFrame:
    return rows if each.origin in (None, ORIGIN) else rows.withColumnRenamed(each.origin, ORIGIN)
