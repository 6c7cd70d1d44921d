"""SQL of users and names in records can't make Spark show a variable of its environment."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.run import ingest, replay_dead_letters
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.rule import RuleEntry
from kafka_lake.spec.topic_table import Route, TopicTable, When
from kafka_lake_tests.conftest import NAMESPACE, Topic, View

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

# Set for Spark's JVM, too.
VARIABLE = "PATH"
GETENV = f"CAST(reflect('java.lang.System', 'getenv', '{VARIABLE}') AS int) = 1"


def test_condition_that_calls_java_is_refused_everywhere(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic()
    topic.send({"id": 1})
    topic.send(b"junk")
    spec = topic.spec(dead_letters="table")
    ingest(spec, connections(), "run-1")
    topic.send({"id": 2})
    beside = TopicTable(topic.name, NAMESPACE, f"{topic.table}_beside", schema="id bigint")
    keyed = TopicTable(
        topic.name,
        NAMESPACE,
        f"{topic.table}_keyed",
        schema="id bigint",
        write="upsert",
        key=("id",),
        delete_when=GETENV,
    )
    attempts: list[tuple[str, Callable[[], Any]]] = [
        ("where", lambda: replay_dead_letters(spec, connections(), "replay", where=GETENV)),
        ("rules", lambda: ingest(topic.spec(rules=(RuleEntry(expression=GETENV),)), connections(), "rule")),
        ("where", lambda: ingest(topic.spec(routes=(Route(When(sql=GETENV), beside),)), connections(), "route")),
        ("delete_when", lambda: ingest(keyed, connections(), "delete")),
    ]
    for setting, attempt in attempts:
        with pytest.raises(ConfigurationError, match="calls reflect, which conditions may not call") as refused:
            attempt()
        assert setting in str(refused.value)
        assert "/bin" not in "".join(traceback.format_exception(refused.value)).replace(".venv/bin", "")


def test_field_named_like_a_variable_keeps_its_name(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    name, topic = f"${{env:{VARIABLE}}}", new_topic()
    topic.send({name: 1, "n": 1})
    topic.send({name: 1, "n": 2})
    spec = topic.spec(f"`{name}` bigint, n bigint", write="upsert", key=(name,))
    ingest(spec, connections(), "run-1")
    (row,) = view(spec).rows()
    assert (row[name], row["n"]) == (1, 2)
