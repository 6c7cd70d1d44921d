"""Rows on a table's page: those of the newest commit, as far as the settings let them out."""

import re
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from kafka_lake.components.metadata import sample_rows
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog

NAME = ("lake", "orders")


@pytest.fixture
def table(catalog: LakeCatalog) -> Table:
    catalog.ensure_namespace("lake")
    rows = pa.table({
        "id": [1, 2, 3], "note": ["<b>a</b>|`b`\n" + "x" * 100, "card 4111-1111", None], "to": [{"city": "Ulm"}] * 3,
        "_kafka": [{"offset": n} for n in range(3)],
    })  # fmt: skip
    made = catalog.pyiceberg.create_table(NAME, rows.schema)
    made.append(rows.slice(0, 1).set_column(0, "id", [[99]]))
    made.append(rows)
    return made


def told(spec: TopicTable, table: Table, snapshots: list[int]) -> list[list[str]]:
    """Return head and cells."""
    found: Any = sample_rows(spec, table, snapshots)
    lines = [line for line in found.value.splitlines() if line.startswith("|")]
    return [[each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if "---" not in line]


def newest(table: Table) -> list[int]:
    return [each.snapshot_id for each in reversed(table.history())]


def test_they_are_the_first_of_the_newest_commit_without_the_metadata_column(table: Table) -> None:
    spec = TopicTable("orders", "lake", "orders", sample_rows=2, mask=(r"\d{4}-\d{4}",))
    head, first, second = told(spec, table, newest(table))
    assert head == ["`id`", "`note`", "`to`"]
    assert first == ["`1`", "``<b>a</b>\\|`b` " + "x" * 67 + "…``", "`{'city': 'Ulm'}`"]
    assert second == ["`2`", "`card ***`", "`{'city': 'Ulm'}`"]


def test_a_commit_without_rows_is_passed_over(table: Table) -> None:
    spec = TopicTable("orders", "lake", "orders", sample_rows=1)
    with table.transaction() as change, change.update_snapshot().fast_append():
        pass
    assert newest(table)[0] != newest(table)[1]
    assert told(spec, table, newest(table))[1][0] == "`1`"
    assert sample_rows(spec, table, newest(table)[:1]) is None


def test_wide_tables_say_how_much_is_left_out(catalog: LakeCatalog) -> None:
    catalog.ensure_namespace("lake")
    rows = pa.table({f"c{number}": [number] for number in range(30)})
    made = catalog.pyiceberg.create_table(NAME, rows.schema)
    made.append(rows)
    found: Any = sample_rows(TopicTable("orders", "lake", "orders", sample_rows=5), made, newest(made))
    assert "`19`" in found.value
    assert "`20`" not in found.value
    assert found.value.rstrip().endswith("… and 10 more columns.")
    assert len(found.value) >= 1000, "Dagster shows shorter Markdown in a narrow column"


@pytest.mark.parametrize("settings", [{}, {"sample_rows": 5, "samples": False}])
def test_nothing_is_shown_unless_somebody_says_so(table: Table, settings: dict[str, Any]) -> None:
    assert sample_rows(TopicTable("orders", "lake", "orders", **settings), table, newest(table)) is None
