"""`kafka-lake query` on a real table: values are exact, a query reads nothing else. The code to read a table runs."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest
from typer.testing import Result

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.how_to_read import how_to_read_page
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import Route, TopicTable, When
from kafka_lake_tests.conftest import NAMESPACE, Topic
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

SCHEMA = (
    "id bigint, name string, at timestamp, local timestamp_ntz, price decimal(38,18), who struct<a:int,b:string>, "
    "tags array<string>, day date"
)
ROWS = [
    {
        "id": 2**60 + 1,
        "name": "Zoë [red]\x1b[2J",
        "at": "2026-01-02T03:04:05.123456Z",
        "local": "2026-01-02T03:04:05.5",
        "price": "0.123456789012345678",
        "who": {"a": 1, "b": None},
        "tags": ["x", "y"],
        "day": "2026-01-02",
    },
    {"id": 1, "name": None},
]

Query = Callable[..., Result]


@pytest.fixture(scope="module")
def catalog(catalog_resource: CatalogResource) -> LakeCatalog:
    return catalog_resource.open()


@pytest.fixture
def spec(new_topic: Callable[..., Topic], connections: Callable[..., Connections]) -> TopicTable:
    topic = new_topic()
    for row in ROWS:
        topic.send(row)
    spec = topic.spec(SCHEMA)
    ingest(spec, connections(), str(uuid4()))
    return spec


@pytest.fixture
def query(command_line: Callable[..., Result], spec: TopicTable) -> Query:
    return lambda *arguments: command_line([spec], "query", spec.topic, *arguments)


def test_query_returns_the_values_of_the_table(query: Query, spec: TopicTable) -> None:
    columns = 'id, name, "at", local, price, who, tags, day, _kafka.offset, _kafka.offset'
    asked = query(f"SELECT {columns} FROM {spec.table} ORDER BY id DESC; ", "--json")
    assert asked.exit_code == 0
    first, second = json.loads(asked.stdout, parse_float=str)
    assert first == {
        **ROWS[0],
        "at": "2026-01-02 03:04:05.123456+00",
        "local": "2026-01-02 03:04:05.5",
        "price": "0.123456789012345678",
        "offset": 0,
        "offset_1": 0,
    }
    assert second == {**dict.fromkeys(ROWS[0]), "id": 1, "offset": 1, "offset_1": 1}


def test_json_of_a_query_is_valid(query: Query) -> None:
    asked = query("SELECT 'nan'::double AS r, [-'inf'::double] AS l, '\"NaN' AS t", "--json")
    assert json.loads(asked.stdout, parse_constant=pytest.fail) == [{"r": "NaN", "l": ["-Infinity"], "t": '"NaN'}]


def test_query_rows_are_ordered_and_escape_terminal_codes(query: Query) -> None:
    shown = query('WITH t AS (SELECT * FROM this) SELECT id, name, "at", who FROM t ORDER BY id -- the last').stdout
    assert "\x1b" not in shown
    assert "Zoë [red]" in shown
    assert "2026-01-02 03:04:05.123456" in shown
    assert "{'a': 1, 'b': NULL}" in shown
    assert shown.index("│ 1 ") < shown.index(str(2**60 + 1))
    assert "2 rows" in shown
    limited = query("SELECT id FROM this ORDER BY id", "--limit", "1").stdout
    assert "the first 1 row; --limit shows more" in limited
    assert str(2**60 + 1) not in limited


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT nope FROM this", '"nope"'),
        ("DELETE FROM this", "syntax error"),
        ("SELECT * FROM read_text('/etc/passwd')", "Permission Error"),
        ("SELECT * FROM read_text('.tmp/*')", "Permission Error"),
        ("SELECT 1; DROP VIEW this", "syntax error"),
        ("SELECT 1); DROP VIEW this; SELECT * FROM (SELECT 1", "several statements"),
        exhaustive("DROP TABLE {table}", "syntax error"),
        exhaustive("INSERT INTO {table} SELECT * FROM {table}", "syntax error"),
        exhaustive("COPY this TO '/tmp/rows.csv'", "syntax error"),
        exhaustive("SELECT * FROM nothing", "nothing"),
        exhaustive("", "syntax error"),
    ],
)
def test_invalid_query_is_refused_in_one_line(query: Query, spec: TopicTable, sql: str, said: str) -> None:
    refused = query(sql.format(table=spec.table))
    assert refused.exit_code == 1
    (error,) = refused.stderr.splitlines()
    assert "DuckDB can't run this query" in error
    assert said in error
    assert "its columns are id, name, at" in error
    assert json.loads(query("SELECT count(*) AS n FROM this", "--json").stdout) == [{"n": 2}]


def test_each_table_of_a_topic_can_be_asked(
    command_line: Callable[..., Result], new_topic: Callable[..., Topic], connections: Callable[..., Connections]
) -> None:
    topic = new_topic()
    topic.send_ids(range(5))
    large = replace(topic.spec(), table=f"{topic.table}_large")
    spec = replace(topic.spec(), routes=(Route(When(sql="offset > 2"), large),))
    ingest(spec, connections(), str(uuid4()))
    for name, rows in ((topic.name, 3), (topic.table, 3), (large.table, 2), (".".join(large.identifier), 2)):
        shown = command_line([spec], "query", name, "SELECT count(*) AS n FROM this", "--json")
        assert json.loads(shown.stdout) == [{"n": rows}]


def test_a_table_of_several_topics_can_be_asked_by_its_name(
    command_line: Callable[..., Result], query: Query, spec: TopicTable
) -> None:
    both = [spec, replace(spec, topic=f"{spec.topic}-others")]
    for name in (spec.table, spec.topic):
        shown = command_line(both, "query", name, "SELECT count(*) AS n FROM this", "--json")
        assert json.loads(shown.stdout) == [{"n": 2}]


def test_topic_without_table_is_reported(command_line: Callable[..., Result]) -> None:
    refused = command_line([TopicTable("later", NAMESPACE, "later")], "query", "later", "SELECT 1")
    assert refused.exit_code == 1
    assert "Topic later has no table it.later yet" in refused.stderr
    assert "kafka-lake ingest later" in refused.stderr


@pytest.mark.parametrize("tool", ["PyIceberg", exhaustive("DuckDB through PyIceberg"), exhaustive("Polars")])
def test_the_code_on_the_table_s_page_runs_as_it_stands(catalog: LakeCatalog, spec: TopicTable, tool: str) -> None:
    page = how_to_read_page(catalog.name, spec.identifier, catalog.properties)
    (code,) = re.findall(rf"\*\*{tool}\*\*\n\n```python\n(.*?)\n```", page, re.DOTALL)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYICEBERG_")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Polars shows as many columns as fit; all rows are counted in the shape.
    assert ("shape: (2, 9)" if tool == "Polars" else str(2**60 + 1)) in done.stdout
