"""Alert rules and dashboard ask for metrics and labels that exist, in PromQL that parses; each alert is documented."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from kafka_lake.observability.metrics import METRICS

ROOT = Path(__file__).parents[2]
GROUPS = yaml.safe_load((ROOT / "deploy/monitoring/alerts.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
BOARD = json.loads((ROOT / "deploy/monitoring/grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
KNOWN = {metric.name: set(metric.labels) for metric in METRICS}
# What Prometheus itself adds to each sample.
OF_PROMETHEUS = {"job", "instance"}


def labels_of(expression: Any) -> set[str]:
    """Return the labels that the result of an expression has.

    Raises:
        AssertionError: If it asks for a metric or a label that there isn't.
    """
    if isinstance(expression, promql.VectorSelector):
        assert expression.name in KNOWN, f"no metric {expression.name}"
        labels = KNOWN[expression.name] | OF_PROMETHEUS
        for matcher in expression.matchers.matchers:
            assert matcher.name in labels, f"{expression.name} has no label {matcher.name}"
        return labels
    if isinstance(expression, promql.MatrixSelector):
        return labels_of(expression.vector_selector)
    if isinstance(expression, promql.AggregateExpr):
        inner = labels_of(expression.expr)
        if str(expression.op) in ("topk", "bottomk"):
            return inner
        if expression.modifier is None:
            return set()
        named = set(expression.modifier.labels)
        assert named <= inner, f"{named - inner} are no labels of {expression.expr}"
        by = expression.modifier.type == promql.AggModifierType.By
        return named if by else inner - named
    if isinstance(expression, promql.BinaryExpr):
        return _labels_of_both(expression)
    if isinstance(expression, promql.Call):
        inner_sets = [labels_of(arg) for arg in expression.args]
        return set() if expression.func.name == "absent" else set().union(*inner_sets)
    if isinstance(expression, promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
        return labels_of(expression.expr)
    assert isinstance(expression, promql.NumberLiteral), type(expression)
    return set()


def _labels_of_both(expression: Any) -> set[str]:
    left, right = labels_of(expression.lhs), labels_of(expression.rhs)
    scalar = (promql.NumberLiteral,)
    one_sided = any(isinstance(side, scalar) or _is_time(side) for side in (expression.lhs, expression.rhs))
    matching = expression.modifier.matching if expression.modifier else None
    if matching is not None:
        assert set(matching.labels) <= left & right, f"{expression}: both sides need {matching.labels}"
    elif not one_sided:
        assert left == right, f"{expression}: {left ^ right} are on one side only, so nothing matches"
    return left or right


def _is_time(expression: Any) -> bool:
    return isinstance(expression, promql.Call) and expression.func.name == "time"


def in_grafana(text: str) -> str:
    return text.replace("$__rate_interval", "5m").replace("$topic", "orders")


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_alerts_use_existing_metrics(rule: dict[str, Any]) -> None:
    labels = labels_of(promql.parse(rule["expr"]))
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    if "for" in rule:
        assert promql.parse_duration(rule["for"]).total_seconds() >= 60
    assert rule["annotations"].keys() == {"summary", "description"}
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert named <= labels, f"{named - labels} are no labels of the result"


def test_each_alert_is_on_the_page() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    assert re.findall(r"^\| `(KafkaLake\w+)`", page, re.MULTILINE) == names


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=[f"{title}-{item['refId']}" for title, item in TARGETS])
def test_panels_use_existing_metrics(title: str, target: dict[str, Any]) -> None:
    labels = labels_of(promql.parse(in_grafana(target["expr"])))
    named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert named <= labels
    assert target["datasource"]["uid"] == "${datasource}"


def test_dashboard_variable_uses_existing_metrics() -> None:
    (topic,) = [variable for variable in BOARD["templating"]["list"] if variable["name"] == "topic"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", topic["definition"]).groups()  # type: ignore[union-attr]
    assert topic["query"]["query"] == topic["definition"]
    assert label in KNOWN[metric]


def test_panels_have_places_of_their_own() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    for one, other in combinations([panel["gridPos"] for panel in BOARD["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
        assert one["x"] + one["w"] <= 24


def test_nearly_all_metrics_are_of_use() -> None:
    """What no alert and no panel asks for is here by name: a metric that nobody needs is a cost."""
    unused = set(KNOWN) - set(_asked())
    assert unused == {
        "kafka_lake_topics",
        "kafka_lake_partitions",
        "kafka_lake_expired_rows_total",
        "kafka_lake_scrape_last_success_timestamp_seconds",
        "kafka_lake_collection_duration_seconds",
        "kafka_lake_table_deleted_rows",
        "kafka_lake_table_last_commit_timestamp_seconds",
        "kafka_lake_table_last_compaction_timestamp_seconds",
    }


def _asked() -> Iterator[str]:
    for text in [rule["expr"] for rule in RULES] + [target["expr"] for _, target in TARGETS]:
        yield from re.findall(r"kafka_lake_\w+", text)


@pytest.mark.parametrize(
    "wrong",
    [
        "kafka_lake_lag > 1",
        'kafka_lake_lag_seconds{step="plan"} > 1',
        "max by (step) (kafka_lake_lag_seconds) > 1",
        "kafka_lake_lag_records and on (part) kafka_lake_scrape_success",
        "kafka_lake_lag_records - kafka_lake_dead_letters_waiting",
    ],
)
def test_missing_metrics_are_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        labels_of(promql.parse(wrong))
