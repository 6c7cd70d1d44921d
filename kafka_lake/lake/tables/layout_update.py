"""A table's layout brought to what the settings ask for, in one commit of its metadata."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.sorting import SortDirection
from pyiceberg.transforms import VoidTransform

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.names import Names
from kafka_lake.lake.pyiceberg_compat.unsorted import make_unsorted
from kafka_lake.lake.tables.layout import Layout, distribution_of, layout_property, name_of_field, partition_name
from kafka_lake.lake.tables.properties import LAYOUT, from_json


def evolve_layout(
    table: Table, partition_by: Sequence[str], sort_by: Sequence[str], renames: Mapping[str, str] | None = None
) -> list[str]:
    """Give the table the partition spec and sort order that the settings ask for, in one commit of its metadata.

    Only if the layout is this program's own, which the property `LAYOUT` says, and only if the settings have changed
    since: what others did to the spec meanwhile stays. Files that are there keep their layout, as Iceberg does it.

    Args:
        table: The table, freshly loaded.
        partition_by: Iceberg transforms.
        sort_by: Columns.
        renames: The topic's, by which the two may name columns as they were.

    Returns:
        A line for each thing that changed; none if nothing did.

    Raises:
        ConfigurationError: If a transform or sort names a column that the table lacks, or doesn't go with its type.
            Nothing is changed then.
        CommitFailedException: If somebody else changed the table's layout meanwhile. Nothing is changed then.
    """
    schema, renames = table.schema(), renames or {}
    asked = Layout.asked(schema, partition_by, sort_by, renames)
    recorded = from_json(table, LAYOUT)
    if recorded is None or _was_asked(schema, recorded, asked, renames):
        return []
    has = Layout.of(table)
    mode, ours = table.properties.get("write.distribution-mode"), recorded.get("distribution")
    wanted_mode = distribution_of(partition_by) if ours is not None and mode == ours else None
    lines = []
    with table.transaction() as transaction:
        if not asked.same_partitions(has):
            lines.append(f"partition_by: {has.partition_text(schema)} → {asked.partition_text(schema)}")
            _repartition(transaction, table, asked)
        if asked.sort_by != has.sort_by:
            lines.append(f"sort_by: {has.sort_text(schema)} → {asked.sort_text(schema)}")
            _resort(transaction, table, asked)
        properties = {LAYOUT: layout_property(partition_by, sort_by, wanted_mode)}
        if wanted_mode is not None and wanted_mode != mode:
            lines.append(f"write.distribution-mode: {mode} → {wanted_mode}")
            properties["write.distribution-mode"] = wanted_mode
        transaction.set_properties(properties)
    return lines


def _was_asked(schema: Schema, recorded: Mapping[str, Any], asked: Layout, renames: Mapping[str, str]) -> bool:
    try:
        before = Layout.asked(schema, recorded.get("partition_by", ()), recorded.get("sort_by", ()), renames)
    except ConfigurationError:
        # Its columns are called otherwise by now.
        return False
    return "partition_by" in recorded and asked.same_as(before)


def _repartition(transaction: Transaction, table: Table, asked: Layout) -> None:
    schema, asked_fields = table.schema(), {(i, str(t)) for i, t in asked.partition_by}
    history = [field for spec in table.specs().values() for field in spec.fields]
    here = {(f.source_id, str(f.transform)): f for f in table.spec().fields}
    # A name that another field had, in whatever spec, would mix the two up in the partitions of old files.
    used = Names(field.name for field in history)
    try:
        with transaction.update_spec() as update:
            for key, field in here.items():
                if key not in asked_fields and not isinstance(field.transform, VoidTransform):
                    update.remove_field(field.name)
            for source_id, transform in asked.partition_by:
                if (source_id, str(transform)) in here:
                    continue
                known = [f.name for f in history if f.source_id == source_id and str(f.transform) == str(transform)]
                name = known[-1] if known else partition_name(schema, source_id, transform, used)
                used.add(name)
                update.add_field(name_of_field(schema, source_id), transform, name)
    except ValueError as error:
        raise ConfigurationError(
            f"partition_by: {asked.partition_text(schema)} is refused: {error}.", "Choose other transforms."
        ) from error


def _resort(transaction: Transaction, table: Table, asked: Layout) -> None:
    if not asked.sort_by:
        make_unsorted(transaction, table)
        return
    with transaction.update_sort_order() as update:
        for field in asked.sort_fields():
            add_field = update.asc if field.direction is SortDirection.ASC else update.desc
            add_field(name_of_field(table.schema(), field.source_id), field.transform, field.null_order)
