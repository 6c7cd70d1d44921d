"""The top of a topic's document: which topics, where they begin, how much a commit reads."""

import pytest

from kafka_lake.config.topic import Topic
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.unit.config import refusal, spec


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("cluster: eu", {"cluster": "eu"}),
        ("starting_offsets: latest", {"start": "latest"}),
        ("starting_offsets: '2026-01-01T00:00:00Z'", {"start": "2026-01-01T00:00:00Z"}),
        ("read: {max_records_per_commit: 7}", {"max_records_per_commit": 7}),
        ("read: {max_bytes_per_commit: null}", {"max_bytes_per_commit": None}),
    ],
)
def test_settings_arrive(text: str, fields: dict[str, object]) -> None:
    assert spec(f"topic: a\n{text}") == TopicTable("a", **fields)  # type: ignore[arg-type]


def test_several_topics_fill_one_table() -> None:
    assert spec("topics: [a, b]\ntable: shop.both") == TopicTable("a", "shop", "both", topics=("a", "b"))


def test_a_pattern_says_which_topics_fill_a_table() -> None:
    topic = Topic.model_validate({"topics": {"pattern": r"shop\..*", "exclude": r".*\.old"}, "table": "shop.all"})
    assert topic.pattern is not None
    assert [matching.name for matching in topic.pattern.matching(["shop.a", "shop.old", "web.a"])] == ["shop.a"]
    assert topic.topic_table(topics=("shop.a", "shop.b")).topics == ("shop.a", "shop.b")


@pytest.mark.parametrize(
    ("written", "settings"),
    [
        ("{}", Continuous(1, 3600, 300, 100, 30)),
        ("{trigger: 500ms}", Continuous(0.5, 3600, 300, 100, 30)),
        ("{trigger: 1m, for: 1.5h, idle: 10m}", Continuous(60, 5400, 600, 100, 60)),
    ],
)
def test_continuous_runs_have_defaults_for_all(written: str, settings: Continuous) -> None:
    import yaml

    topic = Topic.model_validate(yaml.safe_load(f"topic: a\nread: {{continuous: {written}}}"))
    assert topic.read.continuous is not None
    assert topic.read.continuous.settings() == settings


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("table: a", "topic: is missing, or null without quotes. Name the Kafka topic; or several that fill one table"),
        ("topic: or ders", "topic: String should match pattern"),
        ("topic: 3", "topic: YAML reads this value as the number 3. Write the text in quotes"),
        ("topic: a\ncluster: EU", "cluster: String should match pattern"),
        ("topic: a\nstarting_offsets: yesterday", "starting_offsets: 'yesterday' is"),
        ("topic: a\nread: {max_records_per_commit: 0}", "read: max_records_per_commit: Input should be greater"),
        ("topic: a\nread: {max_records_per_commit: yes}", "max_records_per_commit: YAML reads this value as true"),
        ("topic: a\nread: {max_bytes_per_commit: 0}", "read: max_bytes_per_commit: Input should be greater"),
        ("topic: a\nread: {continuous: {trigger: 2}}", "read: continuous: trigger: YAML reads this value as the numbe"),
        ("topic: a\nread: {continuous: {trigger: two seconds}}", "trigger: 'two seconds' is not a duration"),
        ("topic: a\nread: {continuous: {trigger: 0s}}", "trigger: must be greater than 0"),
        ("topic: a\nread: {continuous: {trigger: 1m, for: 10s}}", "for: 10 s is shorter than the trigger"),
        ("topic: a\nread: {continuous: {every: 2s}}", "read: continuous: every: there is no such setting"),
        ("topics: shop.*\ntable: a", "topics: must be a list of names, or a pattern, as in {pattern: 'shop.*'}"),
        ("topics: []\ntable: a", "topics: List should have at least 1 item"),
        ("topics: {pattern: '['}\ntable: a", "topics: pattern: '[' isn't a regular expression"),
        ("topics: {exclude: a}\ntable: a", "topics: pattern: is missing"),
        ("topic: a\nunmatched: drop", "unmatched: Input should be"),
    ],
)
def test_what_cannot_be_is_refused(text: str, line: str) -> None:
    assert line in refusal(text).splitlines()[0]
