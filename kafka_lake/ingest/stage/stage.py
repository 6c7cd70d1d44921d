"""Stage: one Iceberg write per table to a branch made at the head of `main`; the position rides in its summary."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from kafka_lake.common.errors import ConfigurationError, TableError
from kafka_lake.common.offsets import OffsetRange, Position, losses_to_json
from kafka_lake.executors.arrow_worker import SAMPLE_CHARACTERS, Span
from kafka_lake.ingest.connections import Systems
from kafka_lake.ingest.dead_letters.reconcile import OFFSET, STAGED_WITH, UNSETTLED, at_version, without
from kafka_lake.ingest.dead_letters.samples import quoted
from kafka_lake.ingest.decode.choose import decoder_of
from kafka_lake.ingest.decode.compatibility import refuse_incompatible
from kafka_lake.ingest.decode.decoder import Decoder, batch_metrics
from kafka_lake.ingest.decode.fit_columns import any_of
from kafka_lake.ingest.decode.json import Json, nullable_all
from kafka_lake.ingest.decode.rows import (
    TRANSFORM_ERROR,
    dead_letters_of,
    marks_errors,
    row_type,
    rows_of,
    transform_errors,
    transformed,
    with_transform_errors,
    without_errors,
)
from kafka_lake.ingest.decode.target import Target, documented
from kafka_lake.ingest.decode.undecodable import Unreadable
from kafka_lake.ingest.plan import Plan
from kafka_lake.ingest.stage.arrow_writer import ByArrow, by_arrow, why_not
from kafka_lake.ingest.stage.schema_plan import Wanted, refuse, refuse_too_many, wanted
from kafka_lake.ingest.stage.shape import shaped
from kafka_lake.ingest.stage.variant_table import append_nothing, create_variant_table, has_variant
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch, branch_name
from kafka_lake.lake.evolution import Conflict
from kafka_lake.lake.positions import (
    ADOPTED,
    LOSSES,
    POSITION,
    RESET,
    RUN_ID,
    TableState,
    read_state,
    row_count,
    summary_of,
)
from kafka_lake.lake.schema import Change, needed_changes
from kafka_lake.lake.tables import apply_changes, ensure_table, evolve_layout, schema_of
from kafka_lake.spark.settings import PARALLELISM

log = logging.getLogger(__name__)

_ROWS_WORTH_A_TASK = 250_000
_ROWS_WORTH_A_FILE = 1_000_000
_PARTITIONS_WORTH_A_TASK = 100
# The first shows new fields, the second what is in fields that records have got since, the third that all is well.
_PASSES = 8
_CLASSES = "classes"


@dataclass(frozen=True)
class StagedTable:
    """One table's share of a commit, on its branch.

    Args:
        branch: Where it is staged.
        snapshot: The branch's tip, which is what will be published.
        appended: The snapshot that adds the rows; others on the branch take replaced rows away or keep missing ones.
        state: The table as it was before.
        rows: Rows that the appending snapshot adds, by its own summary.
        files: Data files that it adds.
        size: Their size in bytes.
        spans: The rows by task and Kafka partition, as their writers counted them; None if only a scan can tell.
    """

    branch: StagingBranch
    snapshot: int
    appended: int
    state: TableState
    rows: int
    files: int
    size: int
    spans: tuple[Span, ...] | None = None


@dataclass(frozen=True)
class LetterClass:
    """The records of one commit that didn't decode for one kind of reason.

    Args:
        name: The error class.
        count: How many records.
        partition: Kafka partition of the sample.
        offset: Offset of the sample, the first of its class in that partition.
        message: What was wrong with it, which may quote its value; empty where samples are not to be shown.
        value: The beginning of its value, as text; likewise.
    """

    name: str
    count: int
    partition: int
    offset: int
    message: str
    value: str

    def shown(self, spec: TopicTable) -> "LetterClass":
        """Return what a topic's settings let out of its dead-letter table: into logs, errors and Dagster's pages."""
        message, value = (quoted(text, spec.samples, spec.mask) for text in (self.message, self.value))
        return replace(self, message=message, value=value)


@dataclass(frozen=True)
class Vanished:
    """Rows of the table that Kafka no longer has, within what was read again."""

    partition: int
    rows: int
    first: int


@dataclass(frozen=True)
class Staged:
    """Everything that one plan became, not yet visible to anyone.

    Args:
        primary: The topic's table.
        dead_letters: The dead-letter table, None if there is nothing new for it.
        records: Records read, as Spark counted them while it wrote.
        tombstones: Records without a value among them.
        failed: Records among them that became no row, for a reason.
        known_failed: Those of the failed that are in the dead-letter table already.
        classes: The failed by class.
        vanished: Rows that would be lost by a replacement, since Kafka no longer has their records.
        letters: The failed as rows of the dead-letter table, lazy.
        ignored: Columns that the records would have needed, and the topic's policy leaves out.
        conflicts: Types that the records brought and the columns don't take, and where such values go.
        schemas: How many records were written with which schema of the registry.
        oldest_ms: The least Kafka timestamp of the records, milliseconds since the epoch; None if none has any.
        newest_ms: The greatest likewise.
        unkept: What was in the records and is in no column: path → what is said of it.
    """

    primary: StagedTable
    dead_letters: StagedTable | None
    records: int
    tombstones: int
    failed: int
    known_failed: int
    classes: tuple[LetterClass, ...] = ()
    vanished: tuple[Vanished, ...] = ()
    letters: DataFrame | None = None
    ignored: tuple[Change, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    schemas: Mapping[str, int] = field(default_factory=dict)
    oldest_ms: int | None = None
    newest_ms: int | None = None
    unkept: Mapping[str, str] = field(default_factory=dict)

    def tables(self) -> list[StagedTable]:
        """Return the tables in the order of publication: side tables first, the primary last."""
        return [t for t in (self.dead_letters, self.primary) if t is not None]

    def discard(self) -> None:
        """Remove what was staged and not published, files included."""
        for table in self.tables():
            table.branch.discard()


def create_table(spec: TopicTable, systems: Systems, records: DataFrame, undecodable: bool = False) -> None:
    """Create the topic's table with the columns, partition spec, sort order and properties its settings ask for.

    Args:
        spec: The topic's settings.
        systems: Catalog and Spark.
        records: What shows the columns, where no schema does.
        undecodable: Whether the records must not be looked at; the columns that they would show come later.

    Raises:
        TableError: If no record shows any column.
    """
    decoder = decoder_of(spec, systems, None)
    if not undecodable:
        decoder = decoder.look(records)
    elif decoder.fixed is None:
        # What it would be given has no columns yet.
        spec = replace(spec, transform=None)
    want = wanted(spec, decoder, None)
    refuse(spec, want.refused)
    if not want.target.columns.fields and not ((spec.start == "latest" or undecodable) and spec.metadata_column):
        # A table that begins at the latest offset must hold its position before there are records; columns follow.
        raise TableError(
            f"Topic {spec.topic}: no record of the {records.count()} looked at shows a field by format {spec.format} "
            "that isn't null, so there are no columns to make a table of.",
            "Check format:, declare the columns with schema: or schema_file:, or wait for other records.",
        )
    kind = _row_type(spec, decoder, records, want.target)
    if has_variant(kind):
        create_variant_table(spec, systems, kind)
        return
    schema = schema_of(arrow_columns(kind, want.target.columns))
    if decoder.fixed is None:
        refuse_too_many(spec, None, schema)
    ensure_table(
        systems.catalog,
        spec.identifier,
        schema,
        spec.partition_by,
        spec.sort_by,
        spec.properties,
        _sources(spec, want),
        spec.renames,
        lambda: append_nothing(systems, spec.identifier),
    )


def _row_type(spec: TopicTable, decoder: Decoder, records: DataFrame, target: Target) -> T.StructType:
    """Return the columns of a table's rows; asked of Spark only where a transform has a say."""
    if spec.transform is None:
        return row_type(target.columns, spec)
    decoded = decoder.decode(records, target, max_record_bytes=spec.max_record_bytes, messages=False)
    kind: T.StructType = rows_of(decoded, spec).schema
    return kind


def arrow_columns(rows: T.StructType, declared: T.StructType) -> Any:
    """Return the Arrow schema of a table's rows, required where the declared columns are, and with their comments."""
    # Whether a column is required is the declaration's to say, not the optimizer's.
    required = {f.name for f in declared if not f.nullable}
    kinds = [T.StructField(f.name, nullable_all(f.dataType), f.name not in required) for f in rows]
    return documented(to_arrow_schema(T.StructType(kinds)), declared)


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
        SchemaRefusedError: If the rows' schema doesn't fit the table's and the change is not safe, or not allowed by
            the topic's policy. Nothing is staged any more.
        RegistryError: If a schema registry is needed and doesn't answer. Nothing is staged any more.
        PublishRefusedError: If others changed the table so much that the branch is not what was begun.
    """
    topic_id = plan.after.identity.topic_id
    known_before = decoder = decoder_of(spec, systems, state)
    if plan.undecodable is not None:
        known_before = decoder = Unreadable(plan.undecodable)
        # There are no rows, and without a transform the columns are those of the table.
        spec = replace(spec, transform=None)
    letters_table = None if plan.kind == "redeliver" else systems.catalog.table(spec.dead_letter_table)
    known = _known_letters(spec, systems, plan, read_state(letters_table)) if letters_table else None
    marks = {}
    if plan.kind == "reset":
        marks[RESET] = run_id
    if state.adopted:
        marks[ADOPTED] = str(state.adopted)
    if plan.losses:
        marks[LOSSES] = losses_to_json(plan.losses)
    if spec.metadata_column and (known is not None or plan.kind == "redeliver"):
        marks[UNSETTLED] = run_id
    passes = 0
    with ExitStack() as undo:
        while True:
            name = branch_name(run_id, state.head or 0)
            want = wanted(spec, decoder, state)
            refuse(spec, want.refused)
            rows = _row_type(spec, decoder, records, want.target)
            left_out = _evolve(spec, state, rows, want, decoder.fixed is not None)
            state = replace(state, table=state.table.refresh())
            told = {**marks, **decoder.marks()}
            batch = _Batch(spec, systems, state, plan, records, decoder, want.target, name, run_id, told)
            primary, counts, judged = batch.write(undo)
            failed = counts["failed"]
            crash_point("primary staged")
            learned = decoder.learn(counts, records, want.target)
            if learned is None:
                break
            refuse_incompatible(spec, systems, known_before, learned.decoder)
            wiser = wanted(spec, learned.decoder, state)
            refuse(spec, wiser.refused)
            decoder = learned.decoder
            if not learned.again and wiser.target == want.target:
                want = wiser
                break
            # The batch itself shows what was not known: give the table what that needs, and stage it again.
            undo.close()
            passes += 1
            if passes == _PASSES:
                raise TableError(
                    f"Topic {spec.topic}: after {passes} passes over the same records table "
                    f"{'.'.join(spec.identifier)} still lacks columns for some of their fields.",
                    "That is a defect of kafka_lake: please report it. Set evolution: ignore_new, or declare the "
                    "columns with schema:, to go on meanwhile.",
                )
        dead: StagedTable | None = None
        known_failed = 0
        classes: tuple[LetterClass, ...] = ()
        vanished: tuple[Vanished, ...] = ()
        letters = None
        if failed:
            decoded = judged
            if spec.transform is not None and marks_errors(transformed(decoded, spec, topic_id), spec):
                decoded = with_transform_errors(decoded, transform_errors(transformed(decoded, spec, topic_id), spec))
            letters = dead_letters_of(decoded, run_id, topic_id=topic_id)
            if plan.kind != "redeliver" and spec.dead_letters == "table":
                dead, known_failed = _stage_dead_letters(spec, systems, plan, letters, primary, run_id)
                if dead is not None:
                    undo.callback(dead.branch.discard)
                crash_point("dead letters staged")
            # Who decoded them may have counted them by class.
            counted = () if known_failed else counts.get(_CLASSES, ())
            classes = counted or classes_of(
                letters if dead is None or known_failed else added_rows(systems, spec.dead_letter_table, dead)
            )
            classes = tuple(each.shown(spec) for each in classes)
        if plan.kind == "replace":
            primary, vanished = _keep_what_vanished(spec, systems, plan, primary, letters)
        undo.pop_all()
    return Staged(
        primary,
        dead,
        counts["records"],
        counts["tombstones"],
        failed,
        known_failed,
        classes,
        vanished,
        letters,
        (*want.ignored, *left_out),
        want.conflicts,
        decoder.seen(counts),
        counts.get("oldest_ms"),
        counts.get("newest_ms"),
        {**decoder.unkept(), **_untimed(spec, counts.get("untimed", 0))},
    )


def _untimed(spec: TopicTable, count: int) -> dict[str, str]:
    if not count:
        return {}
    where = f"{spec.metadata_column}.timestamp" if spec.metadata_column else "Kafka's timestamp"
    return {where: f"{count} records have a Kafka timestamp outside of the years 0001 to 9999, which is null here"}


def _evolve(
    spec: TopicTable, state: TableState, rows: T.StructType, want: Wanted, declared: bool
) -> tuple[Change, ...]:
    """Give the table what the rows need, and return what the topic's policy leaves out of it."""
    if has_variant(rows):
        return ()
    table = state.table
    if want.renamed:
        apply_changes(table, table.schema(), want.renamed)
    schema = schema_of(arrow_columns(rows, want.target.columns))
    changes = needed_changes(table.schema(), schema)
    refuse(spec, [c for c in changes if not c.safe or spec.evolution == "freeze"])
    ignored = tuple(c for c in changes if c.kind == "added" and spec.evolution == "ignore_new")
    if not declared:
        refuse_too_many(spec, table.schema(), schema)
    apply_changes(table, schema, [c for c in changes if c not in ignored], _sources(spec, want))
    evolve_layout(table, spec.partition_by, spec.sort_by, spec.renames)
    return ignored


def _sources(spec: TopicTable, want: Wanted) -> Mapping[str, str] | None:
    # A transform's result has columns of its own: where its input came from says nothing about them.
    return None if spec.transform else want.target.sources


def _known_letters(spec: TopicTable, systems: Systems, plan: Plan, letters: TableState) -> DataFrame | None:
    """Return the letters that the dead-letter table has of what the plan reads; None if it has none.

    It has some after a run that died between its two publications, a rollback of the table, or a lost position, and
    whenever records are read again.
    """
    position = letters.position
    if letters.head is None or not row_count(letters.table):
        return None
    if position is not None and not position.identity.same_as(plan.after.identity):
        # Letters of a topic that has been made anew since; its offsets mean other records.
        position = Position(plan.after.identity, {})
    reached = None if plan.kind == "replace" or position is None else position.offsets
    ahead = [r for r in plan.ranges if len(r) and (reached is None or reached.get(r.partition, 0) > r.start)]
    if not ahead:
        return None
    held = at_version(systems.spark(), systems.catalog.spark_name(spec.dead_letter_table), letters.head)
    known = held.filter(_within(ahead, plan.after.identity.topic_id, F.col))
    return known if known.limit(1).count() else None


def _within(ranges: Sequence[OffsetRange], topic_id: str, column: Callable[[str], Any]) -> Any:
    """Return the condition that a row or letter is of these offsets of this very topic."""
    same_topic = column("topic_id").eqNullSafe(F.lit(topic_id or None))
    return same_topic & any_of(
        [
            (column("partition") == r.partition) & (column("offset") >= r.start) & (column("offset") < r.end)
            for r in ranges
        ]
    )


def _stage_dead_letters(
    spec: TopicTable,
    systems: Systems,
    plan: Plan,
    letters: DataFrame,
    primary: StagedTable,
    run_id: str,
) -> tuple[StagedTable | None, int]:
    table = ensure_table(
        systems.catalog,
        spec.dead_letter_table,
        schema_of(to_arrow_schema(nullable_all(letters.schema))),
    )
    state = read_state(table)
    position, known_failed = state.position, 0
    if position is not None and not position.identity.same_as(plan.after.identity):
        position = None
    # Of the very snapshot that the branch starts from: what others publish meanwhile refuses this one.
    if (known := _known_letters(spec, systems, plan, state)) is not None:
        fresh = without(letters, known)
        known_failed = letters.count() - fresh.count()
        letters = fresh
    summary = {POSITION: _furthest(plan.after, position).to_json(), RUN_ID: run_id, STAGED_WITH: str(primary.appended)}
    spark, identifier = systems.spark(), spec.dead_letter_table
    assert state.head is not None, "ensure_table gives every table a first snapshot"
    branch = StagingBranch(spark, systems.catalog, identifier, primary.branch.name, state.head)
    branch.create()
    try:
        columns = spark.table(systems.catalog.spark_name(identifier)).schema
        staged = _append(branch, state, shaped(letters, columns).coalesce(_tasks(plan, spark)), summary)
    except BaseException:
        branch.discard()
        raise
    if staged.rows == 0:
        staged.branch.discard()
        return None, known_failed
    return staged, known_failed


def _furthest(after: Position, before: Position | None) -> Position:
    # Never back: a killed run may have been further in some partitions than this plan is.
    furthest = {**after.offsets}
    for partition, offset in before.offsets.items() if before else ():
        furthest[partition] = max(offset, furthest.get(partition, 0))
    return replace(after, offsets=furthest)


def added_rows(systems: Systems, identifier: tuple[str, str], staged: StagedTable) -> DataFrame:
    """Return the rows that a staged commit adds."""
    base = staged.state.table.refresh().metadata.snapshot_by_id(staged.appended)
    added: DataFrame = (
        systems.spark()
        .read.format("iceberg")
        .option("start-snapshot-id", str(base.parent_snapshot_id if base else staged.branch.head))
        .option("end-snapshot-id", str(staged.appended))
        .load(systems.catalog.spark_name(identifier))
    )
    return added


def classes_of(letters: DataFrame) -> tuple[LetterClass, ...]:
    """Return dead letters by class, the most frequent first, each with its first one of the lowest partition."""
    sample = F.struct(
        F.col("partition"),
        F.col("offset"),
        F.col("error_message"),
        F.substring(F.make_valid_utf8(F.col("value").cast("string")), 1, SAMPLE_CHARACTERS).alias("value"),
    )
    grouped = letters.groupBy("error_class").agg(F.count(F.lit(1)).alias("count"), F.min(sample).alias("sample"))
    found = [
        LetterClass(
            row["error_class"],
            row["count"],
            row["sample"]["partition"],
            row["sample"]["offset"],
            row["sample"]["error_message"] or "",
            row["sample"]["value"] or "",
        )
        for row in grouped.collect()
    ]
    return _most_frequent_first(found)


def _most_frequent_first(classes: Iterable[LetterClass]) -> tuple[LetterClass, ...]:
    return tuple(sorted(classes, key=lambda each: (-each.count, each.name)))


def _keep_what_vanished(
    spec: TopicTable, systems: Systems, plan: Plan, primary: StagedTable, failed: DataFrame | None
) -> tuple[StagedTable, tuple[Vanished, ...]]:
    """Find the rows that a replacement takes away without giving any; put them back if the plan says so."""
    origin, topic_id = origin_of(spec), plan.after.identity.topic_id

    def rows_at(snapshot: int) -> DataFrame:
        frame = at_version(systems.spark(), systems.catalog.spark_name(spec.identifier), snapshot)
        return frame.filter(_within(plan.deletes, topic_id, origin))

    def keys_of(rows: DataFrame) -> DataFrame:
        return rows.select(*[origin(key).alias(key) for key in OFFSET])

    before = rows_at(primary.branch.head)
    gone = without(keys_of(before), keys_of(rows_at(primary.appended)), OFFSET)
    if failed is not None:
        gone = without(gone, failed, OFFSET)
    counted = gone.groupBy("partition").agg(F.count(F.lit(1)).alias("rows"), F.min("offset").alias("first")).collect()
    if not counted:
        return primary, ()
    if not plan.keep_missing:
        return primary, tuple(sorted((Vanished(*row) for row in counted), key=lambda each: each.partition))
    missing = gone.select(*[F.col(key).alias(f"their_{key}") for key in gone.columns])
    same = (origin("partition") == F.col("their_partition")) & (origin("offset") == F.col("their_offset"))
    before.join(missing, same, "left_semi").coalesce(1).writeTo(primary.branch.write_name).append()
    return replace(primary, snapshot=primary.branch.written(primary.appended).snapshot_id), ()


def origin_of(spec: TopicTable) -> Callable[[str], Any]:
    """Return a function from a field of the metadata column to its Spark column.

    Raises:
        ConfigurationError: If the topic's table has no metadata column.
    """
    if spec.metadata_column is None:
        raise ConfigurationError(
            f"Topic {spec.topic}: without a metadata column the rows of table {'.'.join(spec.identifier)} don't tell "
            "which records they were.",
            "Rows can be replaced and moved in tables with a metadata_column only.",
        )
    return lambda field_: F.col(f"`{spec.metadata_column}`.`{field_}`")


@dataclass(frozen=True)
class _Batch:
    """A batch on its way into the topic's table."""

    spec: TopicTable
    systems: Systems
    state: TableState
    plan: Plan
    records: DataFrame
    decoder: Decoder
    target: Target
    branch: str
    run_id: str
    marks: Mapping[str, str]

    def write(self, undo: ExitStack) -> tuple[StagedTable, dict[str, Any], DataFrame]:
        """Stage the rows, by Arrow if it can.

        Args:
            undo: Gets what takes them away again.

        Returns:
            What was staged; the batch's metrics; and the records with ``error_class`` and ``error_message``, or those
            alone that have them.
        """
        spark = self.systems.spark()
        assert self.state.head is not None, "ensure_table gives every table a first snapshot"
        doubt = why_not(self.spec, self.decoder, self.target, self.state, self.plan)
        branch = StagingBranch(spark, self.systems.catalog, self.spec.identifier, self.branch, self.state.head)
        branch.create()
        undo.callback(branch.discard)
        tasks = _tasks(self.plan, spark)
        if not doubt:
            assert isinstance(self.decoder, Json), "others have no way by Arrow"
            arrow = by_arrow(self.spec, spark, self.records, self.decoder, self.target, self.state, self.plan, tasks)
            if arrow is not None:
                return self._append_files(branch, arrow, undo)
        else:
            log.info("Topic %s: Spark writes these rows: %s.", self.spec.topic, doubt)
        rows, counted, decoded = self._decoded()
        return self._append_rows(branch, rows, tasks), counted(), decoded

    def _append_files(
        self, branch: StagingBranch, arrow: ByArrow, undo: ExitStack
    ) -> tuple[StagedTable, dict[str, Any], DataFrame]:
        """Append what Arrow wrote as one snapshot."""
        undo.callback(arrow.release)
        base = branch.staged_snapshot()
        branch.append(arrow.files, self._summary({**self.marks, **arrow.marks}))
        failed = self.records if arrow.failed is None else arrow.failed
        classes = _most_frequent_first(LetterClass(**vars(each)) for each in arrow.failures)
        return _staged(branch, base, self.state, arrow.spans), {**arrow.counts, _CLASSES: classes}, failed

    def _decoded(self) -> tuple[DataFrame, Callable[[], dict[str, Any]], DataFrame]:
        """Return the rows, what tells the metrics after they have been written, and the decoded records."""
        spec, topic_id = self.spec, self.plan.after.identity.topic_id
        limit = spec.max_record_bytes
        decoded = self.decoder.decode(self.records, self.target, max_record_bytes=limit, messages=False)
        observation, metrics = Observation(), batch_metrics(self.decoder, limit)
        rows = transformed(decoded.observe(observation, *metrics), spec, topic_id)
        refused = F.count_if(F.col(TRANSFORM_ERROR).isNotNull()).alias("refused")
        refusals = Observation() if marks_errors(rows, spec) else None
        if refusals is not None:
            rows = rows.observe(refusals, refused)

        def counted() -> dict[str, Any]:
            # Through Connect the metrics may be late, and are missing then: counted in a pass of its own.
            counts = dict(observation.get or decoded.agg(*metrics).collect()[0].asDict())
            if refusals is not None:
                marked = refusals.get or transformed(decoded, spec, topic_id).agg(refused).collect()[0].asDict()
                counts["failed"] += marked["refused"]
            return counts

        letters = self.decoder.decode(self.records, self.target, max_record_bytes=limit)
        return without_errors(rows, spec), counted, letters

    def _fitting(self, rows: DataFrame) -> DataFrame:
        spark = self.systems.spark()
        return shaped(rows, spark.table(self.systems.catalog.spark_name(self.spec.identifier)).schema)

    def _summary(self, marks: Mapping[str, str]) -> dict[str, str]:
        return {POSITION: self.plan.after.to_json(), RUN_ID: self.run_id, **marks}

    def _append_rows(self, branch: StagingBranch, rows: DataFrame, tasks: int) -> StagedTable:
        fitting = self._fitting(rows).coalesce(tasks)
        if self.plan.deletes:
            _delete(self.spec, self.systems.spark(), branch, self.plan)
        return _append(branch, self.state, fitting, self._summary(self.marks))


def _append(branch: StagingBranch, state: TableState, rows: DataFrame, summary: Mapping[str, str]) -> StagedTable:
    """Let Spark append rows to a branch as a snapshot with that in its summary."""
    base = branch.staged_snapshot()
    writer: Any = rows.writeTo(branch.write_name)
    for key, value in summary.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()
    return _staged(branch, base, state)


def _staged(
    branch: StagingBranch, base: int | None, state: TableState, spans: tuple[Span, ...] | None = None
) -> StagedTable:
    """Return the snapshot that has just been appended to a branch that was at a base."""
    snapshot = branch.written(base)
    summary = summary_of(snapshot)
    return StagedTable(
        branch,
        snapshot.snapshot_id,
        snapshot.snapshot_id,
        state,
        int(summary.get("added-records", 0)),
        int(summary.get("added-data-files", 0)),
        int(summary.get("added-files-size", 0)),
        spans,
    )


def _delete(spec: TopicTable, spark: Any, branch: StagingBranch, plan: Plan) -> None:
    origin_of(spec)
    column, topic_id = f"`{spec.metadata_column}`", plan.after.identity.topic_id.replace("'", "")
    offsets = " OR ".join(
        f"({column}.partition = {r.partition} AND {column}.offset >= {r.start} AND {column}.offset < {r.end})"
        for r in plan.deletes
    )
    same_topic = f"{column}.topic_id = '{topic_id}'" if topic_id else f"{column}.topic_id IS NULL"
    spark.sql(f"DELETE FROM {branch.write_name} WHERE {same_topic} AND ({offsets})")


def _tasks(plan: Plan, spark: Any) -> int:
    """Return how many tasks shall write: no core idle on a long batch, and none of them works through two of a size.

    Writers begin another file when one is full; their number doesn't depend on what all of it takes. A cluster that
    doesn't say how many tasks it runs at once gets some for its executors to share, and files of a fair size.
    """
    told = spark.conf.get(PARALLELISM, "")
    cores = int(told) if told else max(2, plan.records_at_most // _ROWS_WORTH_A_FILE)
    by_work = -(-plan.records_at_most // _ROWS_WORTH_A_TASK)
    # Each Kafka partition takes a consumer of its own to open: many are opened on all cores.
    by_partitions = -(-len(plan.ranges) // _PARTITIONS_WORTH_A_TASK)
    return max(1, min(cores, max(by_work, by_partitions)))
