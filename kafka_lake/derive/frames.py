"""The rows that a query reads, as Spark's frames: of pinned snapshots, whole or what is new of them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import ConfigurationError, TableError
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.derive.by_offset import islands, new_rows, rows_within
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import Engine
from kafka_lake.derive.plan import DerivePlan, Pinned
from kafka_lake.derive.query import ORIGIN, over_views, with_origin
from kafka_lake.derive.waiting import coarse
from kafka_lake.ingest.decode.rows import load_transform
from kafka_lake.ingest.record_keys import added_between, at_version
from kafka_lake.spark.kept import kept

# Each is a condition of what goes.
_MOST_RANGES = 1000


class Frames:
    """What a commit reads and computes.

    Args:
        engine: Of the run.
        spec: The derived table.
        plan: Of the commit.
        held: Gets what takes views and kept frames away again.
    """

    def __init__(self, engine: Engine, spec: DerivedTable, plan: DerivePlan, held: ExitStack) -> None:
        self._engine = engine
        self._spec = spec
        self._plan = plan
        self._held = held

    def whole(self, name: str, snapshot: int | None = None) -> DataFrame:
        """Return the rows of an upstream table, of the pinned snapshot if it isn't told."""
        each = self._plan.upstream[name]
        return self._rows(each, each.read.snapshot if snapshot is None else snapshot)

    def new(self, name: str, ranges: Sequence[OffsetRange] = ()) -> DataFrame:
        """Return the rows of an upstream table that are new, and those of some offsets."""
        return new_rows(self.whole(name), self._plan.upstream[name], ranges)

    def before(self, name: str, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the rows of some offsets as they were when the table was read last."""
        each = self._plan.upstream[name]
        if each.before is None or each.before.snapshot is None or not ranges:
            return self.whole(name).limit(0)
        rows = rows_within(self.whole(name, each.before.snapshot), each, ranges)
        # As it is read now: columns that have come since are null there.
        there = {field.name for field in rows.schema}
        more = [field for field in self.whole(name).schema if field.name not in there]
        return rows.select("*", *[F.lit(None).cast(field.dataType).alias(field.name) for field in more])

    def ranges(self, name: str) -> tuple[OffsetRange, ...]:
        """Return the offsets before the position whose rows may be others now; asks Spark where snapshots tell.

        Raises:
            TableError: If rows have come that tell no offset.
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
            # These offsets and no others: rows between them may have expired, and what was made of them stays.
            told = islands(places.withColumn("at", F.lit(None))).select("partition", "starts", "ends")
            exact = told.limit(_MOST_RANGES + 1).collect()
            if len(exact) > _MOST_RANGES:
                exact = told.groupBy("partition").agg(F.min("starts"), F.max("ends")).collect()
            found += [OffsetRange(*one) for one in exact]
        return coarse(found, _MOST_RANGES)

    def made_of(self, name: str, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the rows of the derived table itself, before the commit, that are of some offsets."""
        assert self._plan.head is not None, "it has been created"
        own = self._engine.catalog.spark_name(self._spec.identifier)
        return rows_within(at_version(self._engine.spark(), own, self._plan.head), self._plan.upstream[name], ranges)

    def query(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Return what the query gives.

        Args:
            frames: The rows of the upstream tables, by their names in the query.

        Raises:
            ConfigurationError: If the query doesn't go with the tables' columns, or gives columns that no table has.
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
                f"Select {ORIGIN} in the query, or keep it in the transform's result.",
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
                told = "is always null, and has no type" if kind == "void" else f"has type {kind}, which no table has"
                within = "" if field.dataType.simpleString() == kind else "something in "
                raise ConfigurationError(
                    f"Table {spec.name}: {within}column {field.name} {told}.", "Give it another type by CAST."
                )
        return result

    def asked(self, sql: str, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Return what another query gives, over the same tables.

        Args:
            sql: The query.
            frames: The rows of the upstream tables, by their names in the query.

        Raises:
            ConfigurationError: If it doesn't go with the tables' columns.
        """
        with self.explained():
            return self._over_views(sql, self._with_joined(frames))

    def _with_joined(self, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        read = dict(frames)
        for name, each in self._plan.joined.items():
            rows = self._rows(each, each.read.snapshot)
            read[name] = rows.drop(ORIGIN) if each.origin else rows
        return read

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Let what Spark finds wrong with the query in the block be an error that names the table."""
        try:
            yield
        except AnalysisException as error:
            reason = str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")
            raise ConfigurationError(
                f"Table {self._spec.name}: the query or key: doesn't go with the tables that it reads: {reason}.",
                "Correct sql:, transform: or key:. If a column of an upstream table has got another name, rebuild.",
            ) from error

    def kept(self, frame: DataFrame) -> DataFrame:
        """Let Spark keep a frame for as long as the commit takes: it is read several times."""
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
        return self._over_views(with_origin(spec.sql, spec.upstream) if spec.is_row_wise else spec.sql, read)

    def _over_views(self, sql: str, read: Mapping[str, DataFrame]) -> DataFrame:
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
