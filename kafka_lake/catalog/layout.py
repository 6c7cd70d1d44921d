"""How a table is partitioned and sorted, in terms of its schema, and how it follows the settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, UNSORTED_SORT_ORDER_ID, NullOrder, SortDirection, SortField
from pyiceberg.table.update import (
    AddSortOrderUpdate,
    AssertDefaultSortOrderId,
    SetDefaultSortOrderUpdate,
    TableUpdate,
)
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform, parse_transform
from pyiceberg.types import NestedField

from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.schema.names import Names, column_name
from kafka_lake.spec.layout import parse_partition_field, parse_sort_field, written_name

LAYOUT = "kafka-lake.layout"
"""A table property: the partitioning and sort order of the settings at the last change."""


@dataclass(frozen=True)
class Layout:
    """Partitions as field ids and transforms, sort order as field ids and directions: a rename changes nothing."""

    partition_by: tuple[tuple[int, Transform[Any, Any]], ...]
    sort_by: tuple[tuple[int, SortDirection], ...]

    @classmethod
    def from_settings(
        cls, schema: Schema, partition_by: Sequence[str], sort_by: Sequence[str], renames: Mapping[str, str]
    ) -> "Layout":
        """Return the layout that settings ask for."""
        partitions = []
        for text in partition_by:
            column, name = parse_partition_field(text)
            transform = parse_transform(name)
            field = _field(schema, column, "partition_by", renames)
            if not transform.can_transform(field.field_type):
                raise ConfigurationError(
                    f"partition_by: {text!r} doesn't go with column {column}, which is {field.field_type}.",
                    "Choose another transform or another column in the topic's YAML.",
                )
            partitions.append((field.field_id, transform))
        sorts = [parse_sort_field(text) for text in sort_by]
        return cls(
            tuple(partitions),
            tuple(
                (_field(schema, column, "sort_by", renames).field_id, SortDirection(direction))
                for column, direction in sorts
            ),
        )

    @classmethod
    def of(cls, table: Table) -> "Layout":
        """Return the layout of a table."""
        return cls(
            tuple(
                (f.source_id, f.transform) for f in table.spec().fields if not isinstance(f.transform, VoidTransform)
            ),
            tuple((f.source_id, f.direction) for f in table.sort_order().fields),
        )

    def same_partitions(self, other: "Layout") -> bool:
        """Return whether both have the same partitions, in any order."""
        return {(i, str(t)) for i, t in self.partition_by} == {(i, str(t)) for i, t in other.partition_by}

    def same_as(self, other: "Layout") -> bool:
        """Return whether both have the same partitions and sort order."""
        return self.same_partitions(other) and self.sort_by == other.sort_by

    def sort_fields(self) -> list[SortField]:
        """Return the sort order's fields: nulls first where it ascends, last where it descends."""
        return [
            SortField(
                source_id,
                IdentityTransform(),
                direction=direction,
                null_order=NullOrder.NULLS_FIRST if direction is SortDirection.ASC else NullOrder.NULLS_LAST,
            )
            for source_id, direction in self.sort_by
        ]

    def partition_text(self, schema: Schema) -> str:
        """Return ``partition_by`` as a user would write it."""
        return ", ".join(_transform_text(str(t), name_of_field(schema, i)) for i, t in self.partition_by) or "(none)"

    def sort_text(self, schema: Schema) -> str:
        """Return ``sort_by`` as a user would write it."""
        descends = {SortDirection.DESC: " desc", SortDirection.ASC: ""}
        return ", ".join(f"{written_name(name_of_field(schema, i))}{descends[d]}" for i, d in self.sort_by) or "(none)"


def distribution_of(partition_by: Sequence[str]) -> str:
    """Return Iceberg's distribution mode for a table's partitions."""
    return "hash" if partition_by else "none"


def layout_property(partition_by: Sequence[str], sort_by: Sequence[str], distribution: str | None) -> str:
    """Return the property `LAYOUT`."""
    layout: dict[str, Any] = {"partition_by": list(partition_by), "sort_by": list(sort_by)}
    return to_json(layout if distribution is None else {**layout, "distribution": distribution})


def partition_spec_of(schema: Schema, layout: Layout) -> PartitionSpec:
    """Return the partition spec of a new table."""
    used = Names()
    fields = []
    for index, (source_id, transform) in enumerate(layout.partition_by):
        name = partition_name(schema, source_id, transform, used)
        used.add(name)
        fields.append(PartitionField(source_id=source_id, field_id=1000 + index, transform=transform, name=name))
    return PartitionSpec(*fields)


def partition_name(schema: Schema, source_id: int, transform: Transform[Any, Any], used: Names) -> str:
    """Return a name that no column and no other partition field has; an identity partition has its column's name."""
    column = name_of_field(schema, source_id)
    if isinstance(transform, IdentityTransform) and column not in used:
        return column
    kind, _, width = str(transform).partition("[")
    plain, taken = f"{column}_{kind}".replace(".", "_"), Names([*schema.column_names, *used])
    return column_name(f"{plain}_{width.rstrip(']')}" if width and plain in taken else plain, taken)


def _transform_text(transform: str, column: str) -> str:
    kind, _, width = transform.partition("[")
    if kind == "identity":
        return written_name(column)
    column = written_name(column)
    return f"{kind}({width.rstrip(']')}, {column})" if width else f"{kind}({column})"


def name_of_field(schema: Schema, field_id: int) -> str:
    """Return the path of a column, or a placeholder if it was dropped."""
    name = schema.find_column_name(field_id)
    return f"(field {field_id}, which is gone)" if name is None else name


def _field(schema: Schema, column: str, setting: str, renames: Mapping[str, str]) -> NestedField:
    try:
        return schema.find_field(column, case_sensitive=False)
    except ValueError as error:
        if column in renames:
            return _field(schema, ".".join([*column.split(".")[:-1], renames[column]]), setting, {})
        if (renamed := column_name(column, ())) != column and renamed in schema.column_names:
            # The name of a field in the records, which no column can have.
            return _field(schema, renamed, setting, {})
        raise ConfigurationError(
            f"{setting}: there is no column {column!r}; the columns are {', '.join(f.name for f in schema.fields)}.",
            f"Correct {setting} in the topic's YAML, or the schema.",
        ) from error


def evolve_layout(
    table: Table, partition_by: Sequence[str], sort_by: Sequence[str], renames: Mapping[str, str] | None = None
) -> list[str]:
    """Give the table the partition spec and sort order that the settings ask for; existing files keep theirs.

    Only if kafka_lake created the table (it has the property `LAYOUT`) and the settings have changed since then: a
    layout that another program has changed stays.
    """
    schema, renames = table.schema(), renames or {}
    wanted = Layout.from_settings(schema, partition_by, sort_by, renames)
    recorded = from_json(table, LAYOUT)
    if recorded is None or _is_recorded(schema, recorded, wanted, renames):
        return []
    current = Layout.of(table)
    mode, recorded_mode = table.properties.get("write.distribution-mode"), recorded.get("distribution")
    wanted_mode = distribution_of(partition_by) if recorded_mode is not None and mode == recorded_mode else None
    lines = []
    with table.transaction() as transaction:
        if not wanted.same_partitions(current):
            lines.append(f"partition_by: {current.partition_text(schema)} → {wanted.partition_text(schema)}")
            _repartition(transaction, table, wanted)
        if wanted.sort_by != current.sort_by:
            lines.append(f"sort_by: {current.sort_text(schema)} → {wanted.sort_text(schema)}")
            _resort(transaction, table, wanted)
        properties = {LAYOUT: layout_property(partition_by, sort_by, wanted_mode)}
        if wanted_mode is not None and wanted_mode != mode:
            lines.append(f"write.distribution-mode: {mode} → {wanted_mode}")
            properties["write.distribution-mode"] = wanted_mode
        transaction.set_properties(properties)
    return lines


def _is_recorded(schema: Schema, recorded: Mapping[str, Any], wanted: Layout, renames: Mapping[str, str]) -> bool:
    try:
        before = Layout.from_settings(schema, recorded.get("partition_by", ()), recorded.get("sort_by", ()), renames)
    except ConfigurationError:
        # Its columns have been renamed.
        return False
    return "partition_by" in recorded and wanted.same_as(before)


def _repartition(transaction: Transaction, table: Table, wanted: Layout) -> None:
    schema, wanted_fields = table.schema(), {(i, str(t)) for i, t in wanted.partition_by}
    history = [field for spec in table.specs().values() for field in spec.fields]
    current = {(f.source_id, str(f.transform)): f for f in table.spec().fields}
    # With the name of a field of another spec, old files' partitions would mix up the two.
    used = Names(field.name for field in history)
    try:
        with transaction.update_spec() as update:
            for key, field in current.items():
                if key not in wanted_fields and not isinstance(field.transform, VoidTransform):
                    update.remove_field(field.name)
            for source_id, transform in wanted.partition_by:
                if (source_id, str(transform)) in current:
                    continue
                earlier = [f.name for f in history if f.source_id == source_id and str(f.transform) == str(transform)]
                name = earlier[-1] if earlier else partition_name(schema, source_id, transform, used)
                used.add(name)
                update.add_field(name_of_field(schema, source_id), transform, name)
    except ValueError as error:
        raise ConfigurationError(
            f"partition_by: {wanted.partition_text(schema)} is refused: {error}.", "Choose other transforms."
        ) from error


def _resort(transaction: Transaction, table: Table, wanted: Layout) -> None:
    if not wanted.sort_by:
        _make_unsorted(table)
        return
    with transaction.update_sort_order() as update:
        for field in wanted.sort_fields():
            add_field = update.asc if field.direction is SortDirection.ASC else update.desc
            add_field(name_of_field(table.schema(), field.source_id), field.transform, field.null_order)


def _make_unsorted(table: Table) -> None:
    """Make a table unsorted by a commit of its own: PyIceberg's transactions have no public way to do it.

    If the rest of the change of layout is refused, the next attempt does it.
    """
    add: tuple[TableUpdate, ...] = ()
    if UNSORTED_SORT_ORDER_ID not in table.sort_orders():
        add = (AddSortOrderUpdate.model_validate({"sort-order": UNSORTED_SORT_ORDER}),)
    update = SetDefaultSortOrderUpdate.model_validate({"sort-order-id": UNSORTED_SORT_ORDER_ID})
    had = {"default-sort-order-id": table.sort_order().order_id}
    table.catalog.commit_table(table, (AssertDefaultSortOrderId.model_validate(had),), (*add, update))


def to_json(content: Mapping[str, Any]) -> str:
    """Return the text of a table property that has JSON."""
    return json.dumps(dict(content), sort_keys=True)


def from_json(table: Table, name: str) -> dict[str, Any] | None:
    """Return what a property of a table holds; None if the table lacks it."""
    text = table.properties.get(name)
    if text is None:
        return None
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise TableError(
            f"Table {'.'.join(table.name())}: its property {name} is not a JSON object.",
            "Correct or unset the property.",
        )
    return content
