"""What Dagster's page of any table shows: how large and how new it is, its columns, how to read it, its settings."""

import json
import re
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from kafka_lake.common.markdown import plain
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.how_to_read import how_to_read_page
from kafka_lake.lake.positions import has_origin, live_row_count, summary_of

_SHORT_MARKDOWN = 1000
_ORIGIN = "Where the row is from: topic, partition, offset and time of its record in Kafka."


def about_table(table: Table, catalog: LakeCatalog, identifier: tuple[str, str]) -> dict[str, Any]:
    """Return what a table's page shows of it, whatever fills it; nothing while it has no snapshot.

    Args:
        table: The table as it is now.
    """
    newest = table.current_snapshot()
    if newest is None:
        return {}
    return {
        "last_commit": dg.MetadataValue.timestamp(newest.timestamp_ms / 1000),
        **_totals(newest),
        # As text: snapshot ids are larger than what a browser's numbers hold.
        "snapshot_id": str(newest.snapshot_id),
        "dagster/row_count": live_row_count(table),
        "dagster/uri": table.location(),
        "how_to_read": dg.MetadataValue.md(how_to_read_page(catalog.name, identifier, catalog.properties)),
        "dagster/column_schema": dg.TableSchema(columns=[_column(each) for each in table.schema().fields]),
    }


def _totals(newest: Snapshot) -> dict[str, int]:
    """Return files and bytes of a table, as far as its newest snapshot tells them."""
    told = summary_of(newest)
    found = {"files_in_table": told.get("total-data-files"), "bytes_in_table": told.get("total-files-size")}
    return {name: int(text) for name, text in found.items() if text is not None}


def _column(field: NestedField) -> dg.TableColumn:
    return dg.TableColumn(
        field.name,
        readable(str(field.field_type)),
        description=plain(field.doc or "") or (_ORIGIN if has_origin(field.field_type) else None),
        constraints=dg.TableColumnConstraints(nullable=not field.required),
    )


def readable(iceberg_type: str) -> str:
    """Return an Iceberg type as text without field ids and the word optional.

    >>> readable("struct<11: topic: optional string, 12: partition: optional int>")
    'struct<topic: string, partition: int>'
    """
    return re.sub(
        r"\d+: ([^:]+): (?:optional |(required) )", lambda m: f"{m[1]}: {m[2] + ' ' if m[2] else ''}", iceberg_type
    )


def in_a_window(markdown: str) -> dg.MarkdownMetadataValue:
    """Return Markdown that Dagster's page shows in a window of its own, at a click.

    Shorter Markdown stands in a column, which cuts off what a table has on its right.
    """
    return dg.MetadataValue.md(markdown.ljust(_SHORT_MARKDOWN))


def settings_table(settings: Mapping[str, Any]) -> dg.TableMetadataValue:
    """Return settings as a table, from which `settings_in` reads them.

    Args:
        settings: As JSON has them, by name.
    """
    lines = [dg.TableRecord({"setting": name, "value": _written(each)}) for name, each in settings.items()]
    columns = [dg.TableColumn("setting"), dg.TableColumn("value")]
    return dg.MetadataValue.table(lines, dg.TableSchema(columns))


def settings_in(table: dg.TableMetadataValue) -> dict[str, Any]:
    """Return what `settings_table` was given."""
    return {str(each.data["setting"]): _read(str(each.data["value"])) for each in table.records}


def _written(value: Any) -> str:
    """Return a value as JSON, text without quotes where it can't be taken for something else.

    >>> _written("eu"), _written("3"), _written(["a"]), _written(None)
    ('eu', '"3"', '["a"]', 'null')
    """
    if isinstance(value, str) and _read(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
