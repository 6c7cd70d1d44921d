"""Stage: one Iceberg write per table to a branch made at the head of `main`; the position rides in its summary."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from kafka_lake.errors import AuditFailedError, TableError
from kafka_lake.ingest.decode.frame import dead_letters_of, rows_of
from kafka_lake.ingest.decode.json import decode_json, nullable_all, observed_schema, schema_from_observation
from kafka_lake.ingest.plan import Plan
from kafka_lake.ingest.systems import Systems
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.offsets import Position
from kafka_lake.lake.branches import PREFIX, StagingBranch
from kafka_lake.lake.positions import POSITION, RUN_ID, TableState, read_state, summary_of
from kafka_lake.lake.schema import Change, needed_changes
from kafka_lake.lake.tables import apply_changes, ensure_table, schema_of

_TARGET_FILE_BYTES = 128 << 20
_ROWS_WORTH_A_TASK = 250_000
_GUESSED_BYTES_PER_ROW = 100


@dataclass(frozen=True)
class StagedTable:
    """One table's share of a commit, on its branch.

    Args:
        branch: Where it is staged.
        snapshot: The staged snapshot's id.
        state: The table as it was before.
        rows: Rows that the snapshot adds, by its own summary.
        files: Data files that it adds.
        size: Their size in bytes.
    """

    branch: StagingBranch
    snapshot: int
    state: TableState
    rows: int
    files: int
    size: int


@dataclass(frozen=True)
class Staged:
    """Everything that one plan became, not yet visible to anyone.

    Args:
        primary: The topic's table.
        dead_letters: The dead-letter table, None if there is nothing new for it.
        records: Records read, as Spark counted them while it wrote.
        tombstones: Records without a value among them.
        failed: Records among them that didn't decode.
        known_failed: Those of the failed that an earlier, unfinished run has put into the dead-letter table already.
        changes: What the table's schema underwent for these records.
    """

    primary: StagedTable
    dead_letters: StagedTable | None
    records: int
    tombstones: int
    failed: int
    known_failed: int
    changes: tuple[Change, ...] = field(default=())

    def tables(self) -> list[StagedTable]:
        """Return the tables in the order of publication: side tables first, the primary last."""
        return [t for t in (self.dead_letters, self.primary) if t is not None]

    def discard(self) -> None:
        """Remove what was staged and not published, files included."""
        for table in self.tables():
            table.branch.discard()


def value_schema(spec: TopicTable, spark: Any, state: TableState | None, records: DataFrame) -> T.StructType:
    """Return the columns to decode: those declared, else the table's own, else what the records show.

    Args:
        spec: Its ``schema`` counts first.
        spark: Parses DDL, and looks at the records if nothing else tells.
        state: The table, None if there is none yet.
        records: Read only for a topic without schema and table.

    Raises:
        TableError: If no record shows any column.
    """
    if spec.schema is not None:
        return T._parse_datatype_string(spec.schema)
    if state is not None:
        columns = spark.table(_spark_name(state)).schema
        return T.StructType([f for f in columns if f.name != spec.metadata_column])
    observed = records.agg(observed_schema().alias("observed")).collect()[0]["observed"]
    inferred = schema_from_observation(observed)
    if not inferred.fields and not (spec.start == "latest" and spec.metadata_column):
        # A table that begins at the latest offset must hold its position before there are records; columns follow.
        raise TableError(
            f"Topic {spec.topic}: no record of the {records.count()} looked at is a JSON object with a field that "
            "isn't null, so there are no columns to make a table of.",
            "Declare the columns with schema: in the topic's YAML, or wait for other records.",
        )
    return inferred


def _spark_name(state: TableState) -> str:
    catalog, *identifier = (state.table.catalog.name, *state.table.name())
    return ".".join(f"`{part}`" for part in (catalog, *identifier))


def create_table(spec: TopicTable, systems: Systems, records: DataFrame) -> None:
    """Create the topic's table with the columns, partition spec, sort order and properties its settings ask for."""
    spark = systems.spark()
    columns = value_schema(spec, spark, None, records)
    rows = rows_of(decode_json(records, columns), spec)
    schema = schema_of(_arrow(rows, columns))
    ensure_table(systems.catalog, spec.identifier, schema, spec.partition_by, spec.sort_by, spec.properties)


def _arrow(rows: DataFrame, declared: T.StructType) -> Any:
    # Whether a column is required is the declaration's to say, not the optimizer's.
    required = {f.name for f in declared if not f.nullable}
    kinds = [T.StructField(f.name, nullable_all(f.dataType), f.name not in required) for f in rows.schema]
    return to_arrow_schema(T.StructType(kinds))


def stage(
    spec: TopicTable,
    systems: Systems,
    state: TableState,
    plan: Plan,
    records: DataFrame,
    run_id: str,
    crash_point: Callable[[str], None],
) -> Staged:
    """Decode the records and write rows and dead letters to branches of their tables.

    Args:
        spec: The topic's settings.
        systems: Catalog and Spark.
        state: The table as the plan saw it; the branch starts at its head.
        plan: Its position goes into the snapshot's summary.
        records: The planned records, lazy.
        run_id: Names the branches and goes into the summaries.
        crash_point: Called with the name of each step that has been done.

    Returns:
        What was staged. ``main`` of every table is as it was.

    Raises:
        AuditFailedError: If the rows' schema doesn't fit the table's and the change is not safe. Nothing is staged.
    """
    spark = systems.spark()
    columns = value_schema(spec, spark, state, records)
    changes: list[Change] = []
    with ExitStack() as undo:
        while True:
            decoded = decode_json(records, columns)
            rows = rows_of(decoded, spec)
            changes += _evolve(spec, state, rows, columns)
            state = replace(state, table=state.table.refresh())
            observation = Observation()
            metrics = [
                F.count(F.lit(1)).alias("records"),
                F.count_if(F.col("value").isNull()).alias("tombstones"),
                F.count_if(F.col("error_class").isNotNull()).alias("failed"),
            ]
            if spec.schema is None:
                metrics.append(observed_schema().alias("observed"))
            observed_rows = rows_of(decoded.observe(observation, *metrics), spec)
            primary = _write(systems, spec.identifier, state, observed_rows, plan, plan.after, run_id)
            undo.callback(primary.branch.discard)
            counts = observation.get
            crash_point("primary staged")
            if spec.schema is not None:
                break
            wider = _with_new_fields(columns, schema_from_observation(counts["observed"]))
            if wider == columns:
                break
            # The batch itself shows new fields: give the table their columns and stage it again with them.
            undo.close()
            columns = wider
        dead, known = None, 0
        if counts["failed"]:
            dead, known = _stage_dead_letters(spec, systems, plan, decoded, run_id)
            if dead is not None:
                undo.callback(dead.branch.discard)
            crash_point("dead letters staged")
        undo.pop_all()
    return Staged(primary, dead, counts["records"], counts["tombstones"], counts["failed"], known, tuple(changes))


def _with_new_fields(columns: T.StructType, seen: T.StructType) -> T.StructType:
    """Return the columns with those fields of `seen` that they lack, nested ones too; types they have stay."""
    known = {f.name.lower(): f for f in columns}
    merged = []
    for field_ in columns:
        twin = next((f for f in seen if f.name.lower() == field_.name.lower()), None)
        kind = field_.dataType if twin is None else _merged(field_.dataType, twin.dataType)
        merged.append(T.StructField(field_.name, kind, field_.nullable))
    return T.StructType(merged + [f for f in seen if f.name.lower() not in known])


def _merged(mine: T.DataType, seen: T.DataType) -> T.DataType:
    if isinstance(mine, T.StructType) and isinstance(seen, T.StructType):
        return _with_new_fields(mine, seen)
    if isinstance(mine, T.ArrayType) and isinstance(seen, T.ArrayType):
        return T.ArrayType(_merged(mine.elementType, seen.elementType), mine.containsNull)
    return mine


def _evolve(spec: TopicTable, state: TableState, rows: DataFrame, columns: T.StructType) -> list[Change]:
    wanted = schema_of(_arrow(rows, columns))
    changes = needed_changes(state.table.schema(), wanted)
    if refused := [c for c in changes if not c.safe]:
        listed = "; ".join(f"column {c.column}: {c.kind} ({c.before or 'none'} → {c.after or 'none'})" for c in refused)
        raise AuditFailedError(
            f"Topic {spec.topic}: the rows don't fit table {'.'.join(spec.identifier)}: {listed}.",
            "Nothing was staged. Give the column another name, mend schema: or transform:, or choose another table.",
        )
    apply_changes(state.table, wanted, changes)
    return changes


def _stage_dead_letters(
    spec: TopicTable, systems: Systems, plan: Plan, decoded: DataFrame, run_id: str
) -> tuple[StagedTable | None, int]:
    letters = dead_letters_of(decoded, run_id)
    table = ensure_table(
        systems.catalog,
        spec.dead_letters,
        schema_of(to_arrow_schema(nullable_all(letters.schema))),
    )
    state = read_state(table)
    position, known = state.position, 0
    if position is not None and not position.identity.same_as(plan.after.identity):
        # Letters of a topic that has been made anew since; its offsets mean other records.
        position = None
    ahead = [r for r in plan.ranges if position is not None and position.offsets.get(r.partition, 0) > r.start]
    if ahead:
        # A run that died between the side table and the primary has published some of these already.
        name = systems.catalog.spark_name(spec.dead_letters)
        published = systems.spark().table(name).select("partition", "offset")
        within = F.lit(False)
        for each in ahead:
            within = within | (
                (F.col("partition") == each.partition) & (F.col("offset") >= each.start) & (F.col("offset") < each.end)
            )
        published = published.filter(within)
        known = published.count()
        letters = letters.join(published, ["partition", "offset"], "left_anti").select(*letters.columns)
    # Never back: a killed run may have been further in some partitions than this plan is.
    furthest = {**plan.after.offsets}
    for partition, offset in position.offsets.items() if position else ():
        furthest[partition] = max(offset, furthest.get(partition, 0))
    carried = replace(plan.after, offsets=furthest)
    staged = _write(systems, spec.dead_letters, state, letters, plan, carried, run_id)
    if staged.rows == 0:
        staged.branch.discard()
        return None, known
    return staged, known


def _write(
    systems: Systems,
    identifier: tuple[str, str],
    state: TableState,
    rows: DataFrame,
    plan: Plan,
    carried: Position,
    run_id: str,
) -> StagedTable:
    assert state.head is not None, "ensure_table gives every table a first snapshot"
    # Unique per attempt: a branch of a dead run may still be there under its own name.
    name = f"{PREFIX}{run_id.replace('-', '_')}_{min(r.start for r in plan.ranges)}_{state.head}"
    branch = StagingBranch(systems.spark(), systems.catalog, identifier, name, state.head)
    branch.create()
    tasks = _tasks(state, plan, systems.spark())
    kinds = systems.spark().table(systems.catalog.spark_name(identifier)).schema
    shaped = rows.select(*[_column(f, rows) for f in kinds]).coalesce(tasks)
    try:
        (
            shaped.writeTo(branch.write_name)
            .option(f"snapshot-property.{POSITION}", carried.to_json())
            .option(f"snapshot-property.{RUN_ID}", run_id)
            .append()
        )
        state.table.refresh()
        staged = branch.staged_snapshot()
        snapshot = state.table.metadata.snapshot_by_id(staged) if staged else None
        if snapshot is None or snapshot.snapshot_id == state.head:
            raise TableError(
                f"Table {'.'.join(identifier)}: branch {name} holds no staged snapshot after the write.",
                "Somebody removed it; run again.",
            )
    except BaseException:
        branch.discard()
        raise
    summary = summary_of(snapshot)
    return StagedTable(
        branch,
        snapshot.snapshot_id,
        state,
        int(summary.get("added-records", 0)),
        int(summary.get("added-data-files", 0)),
        int(summary.get("added-files-size", 0)),
    )


def _column(target: T.StructField, rows: DataFrame) -> Any:
    names = {name.lower(): name for name in rows.columns}
    if target.name.lower() in names:
        return F.col(f"`{names[target.name.lower()]}`").cast(target.dataType).alias(target.name)
    return F.lit(None).cast(target.dataType).alias(target.name)


def _tasks(state: TableState, plan: Plan, spark: Any) -> int:
    """Return how many tasks shall write: as many as the bytes call for, but no core idle on a long batch."""
    snapshot = state.table.current_snapshot()
    summary = summary_of(snapshot) if snapshot else {}
    rows, size = int(summary.get("total-records", 0)), int(summary.get("total-files-size", 0))
    per_row = size / rows if rows else _GUESSED_BYTES_PER_ROW
    by_bytes = -(-int(plan.records_at_most * per_row) // _TARGET_FILE_BYTES)
    by_work = min(-(-plan.records_at_most // _ROWS_WORTH_A_TASK), int(spark.conf.get("kafka-lake.cores", "2")))
    return max(1, by_bytes, by_work)
