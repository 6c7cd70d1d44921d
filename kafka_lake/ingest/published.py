"""The gates' questions asked of the published table, at any time, by PyIceberg without Spark."""

from dataclasses import replace
from itertools import pairwise

from pyiceberg.table import Table

from kafka_lake.errors import TableError
from kafka_lake.ingest.audit import Finding, data_loss, schema_evolution
from kafka_lake.ingest.report import PublishedNote, moment
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.offsets import Loss, Position, lag, losses_from_json
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.history import SchemaVersion, schema_history
from kafka_lake.lake.positions import LOSSES, POSITION, RESET, ancestors, head_of, read_state, row_count, summary_of


def examine(spec: TopicTable, catalog: LakeCatalog, cluster: KafkaCluster) -> list[Finding]:
    """Check the table as its readers see it.

    Args:
        spec: The topic and its table.
        catalog: Where the table is; metadata, and the columns partition and offset of the data, are read.
        cluster: Asked for the topic's end.

    Returns:
        One finding per check.

    Raises:
        TableError: If there is no table yet.
    """
    table = catalog.table(spec.identifier)
    if table is None:
        raise TableError(f"Table {'.'.join(spec.identifier)} doesn't exist yet.", "Materialize it, and check then.")
    return [
        _row_count(table),
        _offset_continuity(spec, table, cluster),
        _schema_evolution(table),
        _dead_letters(spec, catalog),
        data_loss(recorded_losses(table)),
    ]


def _schema_evolution(table: Table) -> Finding:
    versions = schema_history(table)[1:]
    found = schema_evolution([change for version in versions for change in version.changes])
    return replace(found, changes=tuple(note for version in versions for note in _notes(version)))


def _notes(version: SchemaVersion) -> list[PublishedNote]:
    when, snapshot = moment(version.committed_at), str(version.snapshot_id or "")
    return [PublishedNote(c.column, c.kind, c.before, c.after, "", when, snapshot) for c in version.changes]


def _dead_letters(spec: TopicTable, catalog: LakeCatalog) -> Finding:
    count = row_count(catalog.table(spec.dead_letter_table))
    problems = [f"dead_letters is fail, and table {spec.dead_letter_table[1]} has {count}"]
    return Finding(
        "dead_letters", tuple(problems) if count and spec.dead_letters == "fail" else (), {"dead_letters": count}
    )


def recorded_losses(table: Table) -> list[Loss]:
    """Return what was given up for lost by the commits that ``main``'s history still has, the newest first."""
    return [
        loss
        for snapshot in ancestors(table, head_of(table))
        if (text := summary_of(snapshot).get(LOSSES))
        for loss in losses_from_json(text)
    ]


def _row_count(table: Table) -> Finding:
    claimed = row_count(table)
    counted = sum(task.file.record_count for task in table.scan().plan_files())
    problems = () if claimed == counted else (f"the snapshot claims {claimed} rows, its files hold {counted}",)
    return Finding("row_count", problems, {"rows_in_table": counted})


def _offset_continuity(spec: TopicTable, table: Table, cluster: KafkaCluster) -> Finding:
    problems: list[str] = []
    history = [
        (Position.from_json(text), RESET in summary or LOSSES in summary)
        for s in ancestors(table, head_of(table))
        if (text := (summary := summary_of(s)).get(POSITION))
    ]
    for (newer, on_purpose), (older, _) in pairwise(history):
        problems += [
            f"partition {p} went back from offset {offset} to {newer.offsets.get(p, 0)}"
            for p, offset in older.offsets.items()
            if older.identity.same_as(newer.identity) and newer.offsets.get(p, 0) < offset and not on_purpose
        ]
    position = read_state(table).position
    facts: dict[str, object] = {}
    if position:
        behind = lag(position, cluster.watermarks_of(spec.topic))
        facts = {f"partition_{p}": f"at {o}, lag {behind.get(p, 0)}" for p, o in sorted(position.offsets.items())}
    if spec.metadata_column:
        problems += _duplicates(spec.metadata_column, table, position)
    return Finding("offset_continuity", tuple(problems), facts)


def _duplicates(column: str, table: Table, position: Position | None) -> list[str]:
    import pyarrow.compute as pc

    fields = tuple(f"{column}.{name}" for name in ("topic_id", "partition", "offset"))
    rows = table.scan(selected_fields=fields).to_arrow().flatten()
    rows = rows.rename_columns([name.rpartition(".")[2] for name in rows.column_names])
    # Rows of others name no record.
    rows = rows.filter(pc.is_valid(rows["offset"]))
    # A topic made anew uses the offsets of the old one again: only both together name a record.
    grouped = rows.group_by(["topic_id", "partition"]).aggregate(
        [("offset", "count"), ("offset", "count_distinct"), ("offset", "max")]
    )
    problems = []
    for found in grouped.to_pylist():
        if found["offset_count"] != found["offset_count_distinct"]:
            twice = found["offset_count"] - found["offset_count_distinct"]
            of_topic = (
                pc.equal(rows["topic_id"], found["topic_id"]) if found["topic_id"] else rows["topic_id"].is_null()
            )
            only = rows.filter(pc.and_(of_topic, pc.equal(rows["partition"], found["partition"])))["offset"]
            counts = only.value_counts().to_pylist()
            first = min(c["values"] for c in counts if c["counts"] > 1)
            problems.append(f"partition {found['partition']} has {twice} rows too many, the first at offset {first}")
        current = position and found["topic_id"] in (None, position.identity.topic_id)
        end = position.offsets.get(found["partition"], 0) if position else 0
        if current and found["offset_max"] >= end:
            problems.append(f"partition {found['partition']} has offset {found['offset_max']}, its position is {end}")
    return problems
