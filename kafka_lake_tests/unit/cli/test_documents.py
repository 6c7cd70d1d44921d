"""Documents that are read without Dagster: the same settings as Dagster's, or none."""

import sys
from pathlib import Path

import pytest

from kafka_lake.cli import documents, project
from kafka_lake.cli.commands import init
from kafka_lake.cli.find_project import Target, targets
from kafka_lake.errors import ConfigurationError

NAME = "shop_of_documents"
CLUSTER = "type: kafka_lake.KafkaCluster\nattributes: {maintenance: {expire_after: 9d}, retry_attempts: 2}\n"
SEVERAL = """\
type: kafka_lake.KafkaTopic
attributes:
  topic: "{{ env.SHOP }}.events"
  read: {max_records_per_commit: 7_000}
  starting_offsets: 2026-01-31T00:00:00Z
  tables:
    - {name: shop.orders, where: {field: type, equals: "{{ env.KIND }}"}, partition_by: [day(at)], sort_by: [id desc]}
    - {name: shop.rest, maintenance: {expire_after: 2d}}
---
type: kafka_lake.KafkaTopic
attributes: {topics: [a, b], table: {name: both, columns: id bigint}}
"""
DERIVED = """\
type: kafka_lake.DerivedTable
attributes: {table: big, from: [shop.orders], write: append, sql: SELECT * FROM orders}
---
type: kafka_lake.DerivedTable
attributes: {table: kinds, from: shop.orders, write: upsert, key: ["{{ env.KEY }}"], sql: SELECT id FROM orders}
"""


TOPIC = "type: kafka_lake.KafkaTopic\nattributes: {topic: orders}\n"
OF_TOPIC = (
    "type: kafka_lake.DerivedTable\nattributes: {table: t, from: orders, write: append, sql: SELECT * FROM orders}\n"
)
HOSTILE = OF_TOPIC.replace("SELECT *", "SELECT reflect('a') AS x")


def make(folder: Path, texts: dict[str, str]) -> Target:
    files = {str(path): text for path, text in init.project_files(NAME).items()}
    files |= {f"{NAME}/defs/{name}": text for name, text in {"cluster/defs.yaml": CLUSTER, **texts}.items()}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    documents.read.cache_clear()
    (location,) = targets(folder)
    return location


def test_settings_are_those_of_dagster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP", "eu")
    monkeypatch.setenv("KIND", "7")
    monkeypatch.setenv("KEY", "id")
    location = make(tmp_path, {"events/defs.yaml": SEVERAL, "deep/in/defs.yml": DERIVED, "notes.txt": "none"})
    found = documents.read(location)
    assert found is not None
    quick = (project.maintained_tables(), project.topic_tables(), project.configured_clusters())
    monkeypatch.setattr(documents, "read", lambda _: None)
    assert quick[:2] == (project.maintained_tables(), project.topic_tables())
    by_dagster = {name: [s.model_dump() for s in both] for name, both in project.configured_clusters().items()}
    assert {name: [s.model_dump() for s in both] for name, both in quick[2].items()} == by_dagster
    assert [spec.topic for spec in quick[1]] == ["a", "b", "eu.events"]
    (route,) = quick[1][2].routes
    assert route.when.values == ("7",)
    assert project.derived_table("kinds").key == {"id": "id"}


@pytest.mark.parametrize(
    "texts",
    [
        {"a/defs.yaml": "type: kafka_lake.KafkaTopic\nattributes: {topic: a, tabel: x}\n"},
        {"a/defs.yaml": "type: kafka_lake.KafkaTopic\nattributes: {topic: '{{ env.UNSET_OF_SHOP }}'}\n"},
        {"a/defs.yaml": "type: kafka_lake.KafkaTopic\nattributes: {topic: \"{{ env('A', 'b') }}\"}\n"},
        {"a/defs.yaml": "type: kafka_lake.KafkaTopic\nattributes: {topic: a, cluster: eu}\n"},
        {"a/defs.yaml": "type: kafka_lake.KafkaTopic\nattributes: {topics: {pattern: a}, table: t}\n"},
        {"a/defs.yaml": "type: kafka_lake.KafkaTopics\nattributes: {topics: a}\n"},
        {"a/defs.yaml": "type: kafka_lake.KafkaTopic\nattributes: {topic: a}\npost_processing: {}\n"},
        {f"{n}/defs.yaml": "type: kafka_lake.KafkaTopic\nattributes: {topic: a}\n" for n in "ab"},
        {"a/defs.yaml": DERIVED},
        {"a/defs.yaml": TOPIC, "b/defs.yaml": OF_TOPIC.replace("}", ", every: 0 25 * * *}")},
        {"a/defs.yaml": TOPIC, "b/defs.yaml": OF_TOPIC.replace("}", ", owners: [somebody]}")},
        {"a/defs.yaml": TOPIC.replace("}", ", table: {tags: {cost centre: a}}}")},
        {"a/defs.yaml": TOPIC.replace("}", ", table: {owners: 'team:'}}")},
        {"a/defs.yaml": TOPIC.replace("}", ", table: {group: a-b}}")},
        {"a/defs.yaml": TOPIC, "b/defs.yml": HOSTILE},
        {"a/defs.yaml": "type: .mine.Topic\nattributes: {topic: a}\n"},
        {"a/defs.yaml": "type: kafka_lake.KafkaTopic\nattributes: {topic: a\n"},
        {"a/defs.yaml": ""},
        {"more.py": "import dagster as dg\n"},
        {"two/defs.yaml": "type: kafka_lake.KafkaCluster\n"},
        {"../definitions.py": "from shop import defs\n"},
        {"../definitions.py": "def (\n"},
        {"../definitions.py": ""},
        {"more.py": "def (\n"},
    ],
)
def test_other_projects_are_for_dagster(tmp_path: Path, texts: dict[str, str]) -> None:
    assert documents.read(make(tmp_path, texts)) is None


def test_schedule_and_looks_that_dagster_takes_are_read(tmp_path: Path) -> None:
    derived = OF_TOPIC.replace("}", ", every: 0 6 * * mon-fri, group: a/b, owners: [me@shop.com], tags: {a/b: ''}}")
    found = documents.read(make(tmp_path, {"a/defs.yaml": TOPIC, "b/defs.yaml": derived}))
    assert found is not None
    assert [table.cron for table in found.derived] == ["0 6 * * mon-fri"]


def test_missing_definitions_are_for_dagster(tmp_path: Path) -> None:
    location = make(tmp_path, {})
    (tmp_path / NAME / "definitions.py").unlink()
    assert documents.read(location) is None


def test_query_that_dagster_refuses_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path, {"orders/defs.yaml": TOPIC, "big/defs.yaml": HOSTILE.replace("table: t", "table: big")})
    # Another test may have loaded a project of that name.
    for module in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigurationError, match="No derived table has the name big"):
        project.derived_table("big")
    assert "defs/big/defs.yaml, line 2: sql: it calls reflect" in capsys.readouterr().err


def test_documents_without_topics_are_read(tmp_path: Path) -> None:
    found = documents.read(make(tmp_path, {"empty.py": '"""Nothing."""\n'}))
    assert found is not None
    assert (found.topics, found.derived, found.cluster.retry_attempts) == ([], [], 2)
