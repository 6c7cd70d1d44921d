"""The tables of docs/reference.md have every setting as it is declared; `test_docs` holds the page to them."""

import ast
from pathlib import Path

import pytest

from kafka_lake.common.environment import VARIABLES
from kafka_lake.components.reference import tables
from kafka_lake.ingest.topic_table import TopicTable, pydantic_fields

ROOT = Path(__file__).parents[2]


def test_each_setting_of_a_topic_is_documented() -> None:
    for name, field in pydantic_fields(TopicTable).items():
        assert field.description, name
        assert f"| `{field.serialization_alias or name}` |" in tables()["topic"]


def test_a_default_that_a_setting_needs_no_value_for_is_told() -> None:
    assert "| `max_columns` | whole number | `1000` |" in tables()["topic"]
    assert "| `sort_by` | list of text |  | Columns within each file. | `[ordered_at desc]` |" in tables()["topic"]
    assert "| `topic` | text |  | Name of the Kafka topic. **Needed**, unless `topics`" in tables()["topic"]


def test_the_example_file_has_every_variable() -> None:
    example = (ROOT / ".env.example").read_text()
    assert [each.name for each in VARIABLES if f"#{each.name}" not in example] == []


@pytest.mark.slow
def test_a_variable_is_named_in_one_place() -> None:
    names = {each.name for each in VARIABLES if each.name.startswith("KAFKA_LAKE_")}
    elsewhere = {
        (str(path.relative_to(ROOT)), node.value)
        for path in (ROOT / "kafka_lake").rglob("*.py")
        if path.parts[-2:] != ("common", "environment.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert elsewhere == set()
