"""What taking over a table would write, found out without writing anything."""

from pyiceberg.expressions import NotNull, Reference
from pyiceberg.table import Table

from kafka_lake.errors import AdoptionRefusedError, ConfigurationError, TableError
from kafka_lake.ingest.adopt.model import Adoption, position_of, starts
from kafka_lake.ingest.adopt.sources import Source
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import has_origin, read_state, row_count, summary_of

_DELETES = "total-equality-deletes"


def plan_adoption(spec: TopicTable, connections: Connections, source: Source) -> Adoption:
    """Return what `kafka-lake adopt` would write.

    Args:
        spec: The topic and its table.
        connections: Cluster and catalog are asked; Spark is not.
        source: Where the offsets come from.

    Raises:
        TableError: If there is no such table, or it has a position of its own.
        AdoptionRefusedError: If it can't be told with certainty where the table must resume.
        ConfigurationError: If a setting or an option can't be met.
    """
    name = ".".join(spec.identifier)
    if spec.topics:
        raise ConfigurationError(
            f"Table {name} has several topics: {', '.join(spec.topics)}. Only a table of one can be taken over.",
            "Nothing was changed. Take it over with topic: in its YAML, and write topics: after that.",
        )
    now = connections.cluster.watermarks_of(spec.topic)
    table = connections.catalog.table(spec.identifier)
    if table is None:
        raise TableError(f"Table {name} doesn't exist.", "Nothing was changed. Check the name of the table:.")
    state = read_state(table)
    for topic, position in state.positions.items():
        raise TableError(
            f"Table {name} has a position already, in topic {topic}: {dict(position.offsets)}.",
            f"Nothing was changed. It is this program's; `kafka-lake reset {spec.full_topic} --to …` sets its "
            "position.",
        )
    if state.head is None:
        raise TableError(
            f"Table {name} has no snapshot, so there is nothing to take over.",
            f"Nothing was changed. Set starting_offsets:, and run `kafka-lake ingest {spec.full_topic}`.",
        )
    _refuse_updated(table)
    _refuse_occupied_column(spec, table)
    evidence = source.evidence(table, connections.cluster, now)
    found = starts(name, evidence, now)
    return Adoption(
        topic=spec.topic,
        table=name,
        source=evidence.source,
        head=state.head,
        rows=row_count(table),
        position=position_of(found, now),
        partitions=found,
        notes=(*evidence.notes, _note(spec)),
    )


def _refuse_updated(table: Table) -> None:
    """Refuse a table whose rows are replaced by key, since a topic's records are appended to it from then on."""
    snapshot = table.current_snapshot()
    if snapshot is None or not int(summary_of(snapshot).get(_DELETES, 0)):
        return
    raise AdoptionRefusedError(
        f"Table {'.'.join(table.name())} has equality deletes: its writer replaces rows by key.",
        "Nothing was changed. This program appends every record. Set another table:, or compact the table if the "
        "deletes are from long ago.",
    )


def _refuse_occupied_column(spec: TopicTable, table: Table) -> None:
    """Refuse a table whose metadata column is of others, or names the records of rows: it has those of a run then."""
    column, name = spec.metadata_column, ".".join(spec.identifier)
    here = next((f for f in table.schema().fields if column and f.name.lower() == column.lower()), None)
    if here is None:
        return
    if here.name != column or not has_origin(here.field_type):
        raise ConfigurationError(
            f"Table {name} has a column {here.name} of another writer.",
            "Set another metadata_column: in the topic's YAML.",
        )
    # An attempt that failed before it published may have added it.
    rows = table.scan(
        row_filter=NotNull(term=Reference(f"{column}.offset")), selected_fields=(f"{column}.offset",), limit=1
    )
    if rows.to_arrow().num_rows:
        raise TableError(
            f"Table {name} has no position, and its column {column} names the records of rows: a run has filled it.",
            f"Nothing was changed. Run `kafka-lake ingest {spec.full_topic}`, which finds the position in the rows, or "
            f"`kafka-lake reset {spec.full_topic} --to …`.",
        )


def _note(spec: TopicTable) -> str:
    if spec.metadata_column is None:
        return "Without a metadata column, rows can't be replaced: replay and reset to older offsets don't work."
    return (
        f"Column {spec.metadata_column} is added, and null in the rows that are there: replay and reset can't read "
        "their records again."
    )
