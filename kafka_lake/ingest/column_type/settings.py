"""Whether a topic's settings, and the schemas of its records, go with another type of a column."""

from collections.abc import Sequence
from dataclasses import replace

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyspark.sql import types as T

from kafka_lake.common.errors import ConfigurationError, TableError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decode.choose import decoder_of
from kafka_lake.ingest.decode.key_columns import key_columns
from kafka_lake.ingest.decode.rows import change_columns
from kafka_lake.ingest.stage.schema_plan import plan_schema
from kafka_lake.ingest.topic_state import state_of
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.evolution.model import Conflict
from kafka_lake.lake.positions import TableState

Names = Sequence[str]


def refuse_column(spec: TopicTable, table: Table, path: str, names: Names) -> None:
    """Refuse a column that kafka_lake itself goes by.

    Args:
        spec: The settings of the table.
        table: The table.
        path: Of the column.
        names: The same, name by name.

    Raises:
        TableError: If it is the metadata column, or tells rows or the order of changes apart; or if the table has a
            history, whose rows name columns by their ids.
    """
    own = {spec.metadata_column, *(field.name for field in change_columns(spec))}
    keys = {spec.key_column if spec.key_format else None, *key_columns(spec, table)} if spec.is_keyed else {}
    what = ""
    if names[0] in own:
        what = "is kafka_lake's own"
    elif names[0] in keys:
        what = "is a part of the table's key"
    elif names[0] in spec.order_by:
        what = "tells the order of changes"
    elif spec.write == "history":
        what = "is a column of a history"
    if what:
        raise TableError(
            f"Table {'.'.join(spec.identifier)}: column {path} {what}, and its type can't be changed.",
            "Give the topic another table with table:, and let it be filled from the topic.",
        )


def refuse_contradiction(
    spec: TopicTable, connections: Connections, table: Table, changed: Schema, names: Names, kind: T.DataType
) -> tuple[str, ...]:
    """Refuse a type that the topic's settings, or the schemas of its records, contradict.

    Args:
        spec: The settings of the table.
        connections: The registry is asked, if the format needs it.
        table: The table.
        changed: Its schema with the new type.
        names: Of the column, name by name.
        kind: The new type.

    Returns:
        What is to be known: which schemas have values that will be dead letters.

    Raises:
        ConfigurationError: If the settings declare another type.
        TableError: If records fit the column as it is, and wouldn't fit it any more.
    """
    state, path = state_of(spec, table), ".".join(names)
    decoder = decoder_of(spec, connections, state)
    if decoder.fixed is not None:
        declared = _declared(decoder.fixed.columns, names)
        if declared is not None and declared.simpleString() != kind.simpleString():
            raise ConfigurationError(
                f"Topic {spec.topic}: its settings declare column {path} as {declared.simpleString()}.",
                f"Write {kind.simpleString()} there first (columns: in the topic's YAML); its runs wait with an error "
                "until this command has changed the table.",
            )
        return ()
    as_changed = Table(
        table.name(),
        table.metadata.model_copy(
            update={"schemas": [*table.metadata.schemas, changed], "current_schema_id": changed.schema_id}
        ),
        table.metadata_location,
        table.io,
        catalog=table.catalog,
    )

    def conflicts(state: TableState) -> list[Conflict]:
        return [each for each in plan_schema(spec, decoder, state).conflicts if each.column == path]

    after = conflicts(replace(state, table=as_changed))
    told = tuple(f"{each.label} has {each.got} for it; such records are dead letters" for each in after)
    if after and not conflicts(state):
        raise TableError(
            f"Table {'.'.join(spec.identifier)}: column {path} takes all records as it is, and {told[0]} as "
            f"{kind.simpleString()}.",
            "Let the producer change its schema first.",
        )
    return told


def _declared(columns: T.StructType, names: Names) -> T.DataType | None:
    field = next((each for each in columns if each.name == names[0]), None)
    if field is None or len(names) == 1:
        return field.dataType if field is not None else None
    return _declared(field.dataType, names[1:]) if isinstance(field.dataType, T.StructType) else None
