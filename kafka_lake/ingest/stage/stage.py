"""Stage: one Iceberg write per table to a branch made at the head of `main`; the position rides in its summary."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from pyspark.sql import DataFrame

from kafka_lake.common.errors import TableError
from kafka_lake.common.offsets import losses_to_json
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.dead_letters.due import UNSETTLED
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.stage.batch import CLASSES, DELETES, KEYED, Batch
from kafka_lake.ingest.stage.compatibility import refuse_incompatible
from kafka_lake.ingest.stage.dead_letter_rows import added_rows, known_letters, stage_dead_letters
from kafka_lake.ingest.stage.decoding import Decoding
from kafka_lake.ingest.stage.replaced_rows import keep_what_vanished
from kafka_lake.ingest.stage.schema_plan import plan_schema, refuse_changes
from kafka_lake.ingest.stage.staged import LetterClass, Staged, StagedTable, Vanished
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import branch_name
from kafka_lake.lake.positions import ADOPTED, ADOPTED_FROM, LOSSES, RESET, TableState

# The first shows new fields, the second what is in fields that records have got since, the third that all is well.
_PASSES = 8


def stage(
    spec: TopicTable,
    connections: Connections,
    decoding: Decoding,
    state: TableState,
    plan: Plan,
    records: DataFrame,
    run_id: str,
    on_step: Callable[[str], None],
    letters_before: TableState | None = None,
) -> Staged:
    """Decode the records and write rows and dead letters to branches of their tables.

    Args:
        spec: The topic's settings.
        connections: Catalog and Spark.
        decoding: Makes columns, rows and dead letters of the records.
        state: The table as the plan saw it; the branch starts at its head.
        plan: Its position goes into the snapshot's summary.
        records: The planned records, lazy.
        run_id: Names the branches and goes into the summaries.
        on_step: Called with the name of each step that has been done.
        letters_before: The dead-letter table as the plan saw it; None if there is none.

    Returns:
        What was staged. ``main`` of every table is as it was.

    Raises:
        SchemaRefusedError: If the rows' schema doesn't fit the table's and the change is not safe, or not allowed by
            the topic's policy. Nothing is staged any more.
        RegistryError: If a schema registry is needed and doesn't answer. Nothing is staged any more.
        PublishRefusedError: If others changed the table so much that the branch is not what was begun.
    """
    known_before = decoder = decoding.decoder(spec, connections, state)
    if plan.undecodable is not None:
        known_before = decoder = decoding.unreadable(spec, plan.undecodable)
        # There are no rows, and without a transform the columns are those of the table.
        spec = replace(spec, transform=None)
    seen = None if plan.kind == "dead_letter_replay" else letters_before
    known = known_letters(spec, connections, plan, seen) if seen else None
    marks = {}
    if plan.kind == "reset":
        marks[RESET] = run_id
    if state.adopted:
        marks[ADOPTED] = str(state.adopted)
    if plan.adopted_from is not None:
        who, rows = plan.adopted_from
        marks |= {ADOPTED_FROM: who, ADOPTED: str(rows)}
    if plan.losses:
        marks[LOSSES] = losses_to_json(plan.losses)
    # The rows of keyed tables don't tell of each record, so they tell of no letter either.
    if spec.write == "append" and spec.metadata_column and (known is not None or plan.kind == "dead_letter_replay"):
        marks[UNSETTLED] = run_id
    passes = 0
    with ExitStack() as undo:
        while True:
            name = branch_name(run_id, state.head or 0)
            want, left_out = decoding.evolve_table(spec, state, decoder, records)
            told = {**marks, **decoder.marks()}
            batch = Batch(
                spec=spec,
                connections=connections,
                decoding=decoding,
                state=state,
                plan=plan,
                records=records,
                decoder=decoder,
                target=want.target,
                branch=name,
                run_id=run_id,
                marks=told,
            )
            primary, counts, judged = batch.write(undo)
            failed = counts["failed"]
            on_step("primary staged")
            learned = decoder.learn(counts, records, want.target)
            if learned is None:
                break
            refuse_incompatible(spec, connections, known_before, learned.decoder)
            wiser = plan_schema(spec, learned.decoder, state)
            refuse_changes(spec, wiser.refused)
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
            letters = decoding.letters(spec, judged(), run_id, plan.after.identity.topic_id)
            if plan.kind != "dead_letter_replay" and spec.dead_letters == "table":
                dead, known_failed = stage_dead_letters(
                    spec, connections, plan, letters, primary=primary, run_id=run_id
                )
                if dead is not None:
                    undo.callback(dead.branch.discard)
                on_step("dead letters staged")
            # Who decoded them may have counted them by class.
            counted = () if known_failed else counts.get(CLASSES, ())
            classes = counted or decoding.classes(
                letters if dead is None or known_failed else added_rows(connections, spec.dead_letter_table, dead)
            )
            classes = tuple(each.shown(spec) for each in classes)
        # Nothing goes from a keyed table because it is read again.
        if plan.kind == "replace" and spec.write == "append":
            primary, vanished = keep_what_vanished(spec, connections, plan, primary, letters)
        undo.pop_all()
    return Staged(
        primary=primary,
        dead_letters=dead,
        records=counts["records"],
        tombstones=counts["tombstones"],
        failed=failed,
        known_failed=known_failed,
        classes=classes,
        vanished=vanished,
        letters=letters,
        ignored=(*want.ignored, *left_out),
        conflicts=want.conflicts,
        schemas=decoder.seen(counts),
        oldest_ms=counts.get("oldest_ms"),
        newest_ms=counts.get("newest_ms"),
        bytes_read=counts["bytes_read"],
        deletes=counts.get(DELETES),
        keyed=counts.get(KEYED),
        unkept={**decoder.unkept(), **_untimed(spec, counts.get("untimed", 0))},
    )


def _untimed(spec: TopicTable, count: int) -> dict[str, str]:
    if not count:
        return {}
    where = f"{spec.metadata_column}.timestamp" if spec.metadata_column else "Kafka's timestamp"
    return {where: f"{count} records have a Kafka timestamp outside of the years 0001 to 9999, which is null here"}
