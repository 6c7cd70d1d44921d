"""The derived table gets the columns that the query gives: made with them, or given them by the rules of evolution."""

from pyspark.sql import types as T

from kafka_lake.common.errors import TableError
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import Engine
from kafka_lake.derive.frames import Frames
from kafka_lake.derive.plan import DerivePlan
from kafka_lake.ingest.stage.table_schema import arrow_columns
from kafka_lake.ingest.stage.variant_table import append_nothing
from kafka_lake.lake.assertions import require_assertions
from kafka_lake.lake.schema import needed_changes
from kafka_lake.lake.tables.create import ensure_table, schema_of
from kafka_lake.lake.tables.layout_update import evolve_layout
from kafka_lake.lake.tables.schema_update import apply_changes

_MERGED = {f"write.{each}.mode": "merge-on-read" for each in ("merge", "update", "delete")}


def created(spec: DerivedTable, engine: Engine, frames: Frames) -> None:
    """Create the table with the columns that the query gives; leaves one that is there as it is.

    Raises:
        ConfigurationError: If the query doesn't go with the tables that it reads, or ``partition_by`` or ``sort_by``
            names a column that it doesn't give.
        CatalogRefusedError: If the catalog doesn't compare what commits assert.
    """
    schema = schema_of(arrow_columns(frames.query(frames.every()).schema, T.StructType()))
    version = spec.table_properties.get("format-version")
    table = ensure_table(
        engine.catalog,
        spec.identifier,
        schema=schema,
        partition_by=spec.partition_by,
        sort_by=spec.sort_by,
        # Format version 1 has no deletes beside the data.
        properties={**(_MERGED if spec.key and version != "1" else {}), **spec.table_properties},
        begin=lambda: append_nothing(engine, spec.identifier),
    )
    require_assertions(engine.catalog, table)


def evolved(spec: DerivedTable, frames: Frames, todo: DerivePlan) -> None:
    """Give the table the columns that the query gives and it lacks; ``main`` stays where it is.

    Raises:
        TableError: If a column would need a change that Iceberg doesn't allow.
        ConfigurationError: If the query doesn't go with the tables that it reads.
    """
    assert todo.table is not None, "it has been created"
    schema = schema_of(arrow_columns(frames.query(frames.every()).schema, T.StructType()))
    changes = needed_changes(todo.table.schema(), schema)
    if refused := [each for each in changes if not each.safe]:
        one = refused[0]
        raise TableError(
            f"Table {spec.name}: column {one.column} would change from {one.before or 'none'} to {one.after}, which "
            "readers of older files can't follow.",
            f"CAST it to {one.before} in the query, or give it another name. main is as it was.",
        )
    apply_changes(todo.table, schema, changes)
    evolve_layout(todo.table, spec.partition_by, spec.sort_by, {})
