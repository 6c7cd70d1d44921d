"""A commit's rules that the writing tasks, Spark and the row count answer make one result."""

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.quality.result import RuleResult
from kafka_lake.quality.validation import ValidationResult
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.rule import Range, RowCount, RuleEntry
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers import rules as module


@pytest.mark.parametrize(("failed", "fails"), [(5, True), (0, False)])
def test_no_record_is_refused_if_a_rule_fails_the_commit(
    failed: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = (
        RuleEntry(range=Range(column="a", min=0), on_failure="fail"),
        RuleEntry(unique=("b",)),
        RuleEntry(row_count=RowCount(min=10)),
    )
    spec = TopicTable("orders", "shop", "orders", rules=entries)
    by_tasks, by_spark, counted = spec.named_rules
    result = ValidationResult((RuleResult(by_spark, 10, 1),), refused=SimpleNamespace())  # type: ignore[arg-type]
    evaluated = []

    def evaluate(validation: Any) -> ValidationResult:
        evaluated.append(validation.rules)
        return result

    context: Any = SimpleNamespace(
        spec=spec,
        connections=None,
        decoding=SimpleNamespace(evaluate=evaluate),
        observer=SimpleNamespace(step_done=lambda _: None),
    )
    state = SimpleNamespace(head=None)
    staged: Any = SimpleNamespace(rows=10, rules=(RuleResult(by_tasks, 10, failed),), state=state)
    plan = Plan((), Position(TopicIdentity("cluster", "id", "events"), {}), 0)
    monkeypatch.setattr(module, "added_rows", lambda *_: None)
    validation = module.check_rows(context, plan, staged, declared=False)
    assert evaluated == [(by_spark,)]
    assert [item.rule for item in validation.results] == [by_tasks, by_spark, counted]
    assert validation.results[0].fails is fails
    assert (validation.refused is None) is fails
