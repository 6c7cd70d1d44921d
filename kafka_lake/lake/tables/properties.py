"""Properties of a table that hold JSON."""

import json
from collections.abc import Mapping
from typing import Any

from pyiceberg.table import Table

from kafka_lake.errors import TableError

SOURCES = "kafka-lake.sources"
"""Which field feeds which column where their names differ: path → field."""
LAYOUT = "kafka-lake.layout"
"""The partitioning and the sort order that the settings asked for last."""


def to_json(content: Mapping[str, Any]) -> str:
    """Return the text of a property."""
    return json.dumps(dict(content), sort_keys=True)


def from_json(table: Table, name: str) -> dict[str, Any] | None:
    """Return what a property of a table holds; None if the table lacks it.

    Raises:
        TableError: If it is not a JSON object.
    """
    text = table.properties.get(name)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise TableError(
            f"Table {'.'.join(table.name())}: its property {name} is not a JSON object.",
            "Correct or unset the property.",
        )
    return found
