"""The lists of docs/settings.md and docs/configuration.md have every setting; `test_docs` holds the pages to them."""

import ast
from pathlib import Path

import pytest

from kafka_lake.common.environment import VARIABLES
from kafka_lake.config.formats import Avro
from kafka_lake.config.table import Table
from kafka_lake.config.topic import Topic
from kafka_lake.config.write import History, Upsert
from kafka_lake_tests.meta.generated_tables import of_a_topic

ROOT = Path(__file__).parents[2]


def test_each_setting_of_a_topic_is_documented() -> None:
    groups = of_a_topic()
    for model, group in ((Topic, "topic"), (Table, "table"), (Upsert, "write"), (History, "write"), (Avro, "format")):
        for name in model.names():
            assert f"- **`{name}`** (" in groups[group], name


def test_default_of_optional_setting_is_documented() -> None:
    assert "- **`mode`** (`evolve`, `freeze`, `ignore_new`, default `evolve`): " in of_a_topic()["evolution"]
    assert "- **`sort_by`** (list of text): Columns that rows are sorted by" in of_a_topic()["table"]
    assert "Example: `[ordered_at desc]`." in of_a_topic()["table"]
    assert "- **`topic`** (text): Name of the Kafka topic. Required unless `topics` is set." in of_a_topic()["topic"]
    assert "- **`write`** (group, default `append`): " in of_a_topic()["table"]


def test_setting_groups_list_all_their_kinds() -> None:
    assert "- **`mode`** (`append`, `upsert`, `history`)\n" in of_a_topic()["write"]
    assert "- **`mode`** (`table`, `skip`)\n" in of_a_topic()["dead-letters"]


def test_the_example_file_has_every_variable() -> None:
    example = (ROOT / ".env.example").read_text()
    assert [variable.name for variable in VARIABLES if f"#{variable.name}" not in example] == []


@pytest.mark.slow
def test_a_variable_is_named_in_one_place() -> None:
    names = {variable.name for variable in VARIABLES if variable.name.startswith("KAFKA_LAKE_")}
    elsewhere = {
        (str(path.relative_to(ROOT)), node.value)
        for path in (ROOT / "kafka_lake").rglob("*.py")
        if path.parts[-2:] != ("common", "environment.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert elsewhere == set()
