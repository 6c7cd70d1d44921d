"""What all groups of settings do: unknown keys, missing ones, templates, and the shape of the whole document."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any, Literal, get_origin

import jsonschema
import pytest
import yaml

from kafka_lake.config.table import OneTable, TablesBy, TableSettings, Where
from kafka_lake.config.topic import ContinuousRuns, Topic
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.orchestration.components.kafka_topics import KafkaTopics
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.rule import RuleEntry
from kafka_lake.spec.settings import Settings, groups_in, has_templates
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.unit.config import refusal, spec
from kafka_lake_tests.unit.orchestration.test_component import load
from kafka_lake_tests.unit.orchestration.test_component import refusal as loading_refusal

TOP = [
    "topic", "topics", "cluster", "format", "key", "table", "tables", "tables_by", "unmatched",
    "starting_offsets", "read",
]  # fmt: skip
OWN_PAGES = {ContinuousRuns, Maintenance, RuleEntry, TablesBy, Where}
"""Groups that count as one setting each: they have pages of their own, or are shared with other documents."""
OF_DAGSTER = {"owners", "group", "tags", "description"}


def leaves(model: type[Settings]) -> set[str]:
    """Return the settings of a document, each once, however many groups have it."""
    found = set[str]()
    for name, field in model.model_fields.items():
        groups = [item for item in groups_in(field.annotation) if item not in OWN_PAGES]
        for group in groups:
            found |= {f"{'table' if issubclass(group, TableSettings) else name}: {leaf}" for leaf in leaves(group)}
        if not groups:
            found.add(field.alias or name)
    return found


def test_a_document_has_these_keys_at_its_top() -> None:
    assert Topic.names() == TOP


def test_a_document_has_at_most_fifty_settings() -> None:
    found = {leaf for leaf in leaves(Topic) if leaf.rpartition(": ")[2] not in OF_DAGSTER}
    assert len(found) <= 50, sorted(found)


def test_each_setting_is_documented() -> None:
    groups, seen = [Topic, TablesBy], set[type[Settings]]()
    while groups:
        group = groups.pop()
        seen.add(group)
        of_rules = RuleEntry in seen and group is RuleEntry
        fields = () if of_rules else group.model_fields.values()
        groups += [item for field in fields for item in groups_in(field.annotation) if item not in seen]
    # What chooses a group has no words of its own.
    lacking = [
        f"{group.__name__}: {name}"
        for group in seen
        for name, field in group.model_fields.items()
        if not field.description and get_origin(field.annotation) is not Literal
    ]
    assert lacking == []
    assert len(seen) > 20


def test_a_topic_is_enough() -> None:
    assert spec("topic: shop.Orders-v2") == TopicTable("shop.Orders-v2", "lake", "shop_orders_v2")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("topic: a\ntabel: b", "tabel: there is no such setting. Did you mean table?"),
        ("topic: a\nwrite: upsert", "write: belongs into table:, as in table: {write: …}"),
        ("topic: a\nwhere: {sql: a}", "where: belongs into tables:, as in tables: [{where: …}]"),
        ("topic: a\ncontinuous: {}", "continuous: belongs into read:, as in read: {continuous: …}"),
        ("topic: a\ntable: {order_by: [a]}", "table: order_by: belongs into write:, as in write: {order_by: …}"),
        (
            "topic: a\nformat: {type: avro, subjet: s}",
            "subjet: there is no such setting. Did you mean subject?",
        ),
        ("topic: a\nformat: avr", "format: 'avr' isn't known. Did you mean avro?"),
        ("topic: a\nformat: {infer_timestamps: true}", "format: type: is missing. Write one of json, avro, protobuf"),
        ("topic: a\ntable: {write: {mode: append, key: [a]}}", "table: write: key: there is no such setting"),
        ("topic: a\ntable: {write: {mode: upset}}", "table: write: mode: 'upset' isn't known. Did you mean upsert?"),
        (
            "topic: a\ntables: [{name: a}, {nam: b}]",
            "tables: number 2: nam: there is no such setting. Did you mean",
        ),
        ("topic: a\ntables: [{where: {field: a, equals: b}}]", "tables: number 1: name: is missing"),
    ],
)
def test_a_key_that_isnt_known_is_refused_with_the_nearest(text: str, line: str) -> None:
    assert line in refusal(text).splitlines()[0]


def test_a_nested_key_that_isnt_known_is_refused_with_its_line() -> None:
    text = loading_refusal("topic: a\ntable:\n  write:\n    mode: upsert\n    kei: [id]")
    assert "there is no such setting. Did you mean key?" in text
    assert "attributes.table.write.kei at " in text
    assert "defs.yaml:7" in text


def test_a_template_may_stand_for_any_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_NUMBER", "70")
    monkeypatch.setenv("A_TEXT", "upsert")
    component, _ = load(
        "topic: '{{ env.A_TEXT }}'\nread: {max_records_per_commit: '{{ env.A_NUMBER }}'}\n"
        "table: {write: {mode: '{{ env.A_TEXT }}', key: ['n{{ env.A_NUMBER }}']}, "
        'dead_letters: \'{{ "sk" ~ "ip" }}\'}'
    )
    found = component.topic_table()
    assert (found.topic, found.max_records_per_commit, found.dead_letters) == ("upsert", 70, "skip")
    assert (found.write, found.key) == ("upsert", ("n70",))
    assert not has_templates(component)


def test_a_template_may_stand_for_each_setting() -> None:
    groups, seen = [Topic, TablesBy, Where], set[type[Settings]]()
    while groups:
        group = groups.pop()
        seen.add(group)
        groups += [g for f in group.model_fields.values() for g in groups_in(f.annotation) if g not in seen]
        template = dict.fromkeys(group.names(), "{{ env.A }}")
        assert group.model_validate(template).model_dump(by_alias=True, warnings=False) == template
    assert len(seen) > 30


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("read: {max_records_per_commit: '{{ env.A_SECRET }}'}", "Input should be a valid integer"),
        ("table: {write: '{{ env.A_SECRET }}'}", "'{{ env.A_SECRET }}' isn't known. Write one of append"),
        ("table: {columns: 'id {{ env.A_SECRET }}<'}", "brackets don't match in 'id {{ env.A_SECRET }}<'"),
        ("table: {dead_letters: {limit: '{{ env.A_SECRET }}'}}", "'{{ env.A_SECRET }}' isn't a limit"),
        ("starting_offsets: '{{ env.A_SECRET }}'", "'{{ env.A_SECRET }}' is neither earliest, latest nor"),
        ("starting_offsets: '{{ env.A_LETTER }}'\ntable: {wriet: append}", "Did you mean write?"),
        ("starting_offsets: '{{ env.A_LETTER }}'\ntable: {write: '{{ env.A_SECRET }}'}", "isn't known. Write one of"),
    ],
)
def test_what_a_template_gives_is_refused_without_its_value(
    written: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", r"hunter2\d<(")
    monkeypatch.setenv("A_LETTER", "n")
    text = loading_refusal(f"topic: a\n{written}")
    assert line in text
    assert "hunter2" not in text


SCHEMA = KafkaTopic.model_json_schema()


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("topic: a", True),
        ("topic: a\nformat: avro\ntable: shop.orders", True),
        ("topic: a\nformat: {type: avro, envelope: debezium}\ntable: {write: {mode: history, key: [id]}}", True),
        (
            "topic: a\ntables: [{name: a, where: {field: type, equals: [b]}}, {name: b, dead_letters: {limit: 5%}}]",
            True,
        ),
        ("topic: '{{ env.A }}'\nread: {max_records_per_commit: '{{ env.B }}'}\nformat: '{{ env.C }}'", True),
        ("topic: a\ntable: {partition_by: day(at), redact: '[0-9]+', properties: {format-version: '3'}}", True),
        ("topic: a\nread: {max_records_per_commit: many}", False),
        ("topic: a\ntabel: b", False),
        ("topic: a\nformat: avr", False),
        ("topic: a\ntable: {write: {mode: append, key: [id]}}", False),
        ("topic: a\ntable: {write: {mode: upsert, track: [id]}}", False),
    ],
)
def test_editors_are_told_what_may_be_written(text: str, is_valid: bool) -> None:
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(yaml.safe_load(text)) == is_valid


def test_editors_are_told_what_settings_mean() -> None:
    assert "SCD 2" in json.dumps(SCHEMA)
    assert "takes and returns a DataFrame" in json.dumps(SCHEMA)


def test_one_table_has_all_but_a_condition() -> None:
    assert {*OneTable.model_fields} == {*TableSettings.model_fields, "name"}


PAGES = [*sorted((Path(__file__).parents[3] / "docs").glob("*.md")), Path(__file__).parents[3] / "README.md"]
BLOCKS = [
    (page.name, document)
    for page in PAGES
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    for document in yaml.safe_load_all(textwrap.dedent(block))
    if isinstance(document, dict)
]


def attributes_of(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the settings of a topic that a page shows, or a part of them; None if it shows something else."""
    shown = document.get("attributes", document)
    if document.get("type", "kafka_lake.KafkaTopic") != "kafka_lake.KafkaTopic" or not {*shown} <= {*TOP}:
        return None
    return {"topic": "a", **shown} if "topics" not in shown else shown


EXAMPLES = [(page, found) for page, document in BLOCKS if (found := attributes_of(document)) is not None]


@pytest.mark.parametrize(("page", "attributes"), EXAMPLES, ids=[page for page, _ in EXAMPLES])
def test_each_example_of_the_pages_is_taken(page: str, attributes: dict[str, Any]) -> None:
    if isinstance(attributes.get("topics"), str):
        assert KafkaTopics(**attributes).pattern.topics
    else:
        assert Topic.model_validate(attributes).topic_table().topic


def test_the_pages_have_examples_of_topics() -> None:
    assert len(EXAMPLES) > 25
    written = [document["type"] for _, document in BLOCKS if "type" in document]
    assert {name for name in written if "Topic" in name} == {"kafka_lake.KafkaTopic", "kafka_lake.KafkaTopics"}
