"""How a table is partitioned and sorted, in terms of its schema."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform, parse_transform
from pyiceberg.types import DoubleType, FloatType, NestedField

from kafka_lake.catalog.positions import CREATED
from kafka_lake.errors import ConfigurationError
from kafka_lake.schema.names import Names, column_name
from kafka_lake.spec.layout import parse_partition_field, parse_sort_field, written_name

FLOATS = (FloatType, DoubleType)
"""Types that no partition field may have."""


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
            # NaN equals no value, and -0.0 equals 0.0: such rows would be in no partition, or in two.
            if not transform.can_transform(field.field_type) or isinstance(field.field_type, FLOATS):
                raise ConfigurationError(
                    f"partition_by: {text!r} can't be applied to column {column} of type {field.field_type}.",
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

    def partitions(self, schema: Schema) -> list[str]:
        """Return the partition fields as a user would write them."""
        return [_transform_text(str(transform), name_of_field(schema, i)) for i, transform in self.partition_by]

    def order(self, schema: Schema) -> list[str]:
        """Return the sort fields as a user would write them."""
        descends = {SortDirection.DESC: " desc", SortDirection.ASC: ""}
        return [f"{written_name(name_of_field(schema, i))}{descends[d]}" for i, d in self.sort_by]


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
        raise ConfigurationError(
            f"{setting}: there is no column {column!r}; the columns are {', '.join(f.name for f in schema.fields)}.",
            f"Correct {setting} in the topic's YAML, or the schema.",
        ) from error


def check_layout(
    table: Table, partition_by: Sequence[str], sort_by: Sequence[str], renames: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuse settings that ask for another layout than a table has, unless another program created the table."""
    schema, current = table.schema(), Layout.of(table)
    wanted = Layout.from_settings(schema, partition_by, sort_by, renames)
    have, want, order = current.partitions(schema), wanted.partitions(schema), wanted.order(schema)
    changes = [f"DROP PARTITION FIELD {text}" for text in have if text not in want]
    changes += [f"ADD PARTITION FIELD {text}" for text in want if text not in have]
    if changes or order != current.order(schema):
        # Each of them sets the distribution, too.
        by = "DISTRIBUTED BY PARTITION" if want or order else "UNORDERED"
        changes.append(f"WRITE {by} LOCALLY ORDERED BY {', '.join(order)}" if order else f"WRITE {by}")
    if changes and CREATED in table.properties:
        name = ".".join(table.name())
        alter = f"ALTER TABLE {'.'.join(map(written_name, (table.catalog.name, *table.name())))}"
        raise ConfigurationError(
            f"The layout of table {name} differs from the settings: partition_by: [{', '.join(have)}], sort_by: "
            f"[{', '.join(current.order(schema))}].",
            "main is unchanged. Correct partition_by: and sort_by:, or change the layout of new files with Spark "
            f"SQL: {'; '.join(f'{alter} {change}' for change in changes)}.",
        )
