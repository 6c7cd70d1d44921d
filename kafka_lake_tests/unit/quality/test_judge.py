"""The verdict on a commit whose rules are asked by several."""

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_lake.quality.result import RuleResult
from kafka_lake.quality.validation import ValidationResult
from kafka_lake.spec.rule import Range, RowCount, RuleEntry, rules_of
from kafka_lake.writers import rules as module


@pytest.mark.parametrize(("failed", "fails"), [(5, True), (0, False)])
def test_nothing_is_refused_if_a_rule_that_writers_asked_fails(
    failed: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        RuleEntry(range=Range(column="a", min=0), on_failure="fail"),
        RuleEntry(unique=("b",)),
        RuleEntry(row_count=RowCount(min=10)),
    ]
    by_writers, by_spark, counted = rules_of(entries)
    found: Any = ValidationResult((RuleResult(by_spark, 10, 1),), refused=SimpleNamespace())  # type: ignore[arg-type]
    context: Any = SimpleNamespace(
        spec=SimpleNamespace(named_rules=(by_writers, by_spark, counted)),
        decoding=SimpleNamespace(evaluate=lambda _: found),
        observer=SimpleNamespace(step_done=lambda _: None),
    )
    staged: Any = SimpleNamespace(rows=10, rules=(RuleResult(by_writers, 10, failed),))
    plan: Any = SimpleNamespace(undecodable=None, kind="append", share=None)
    asked = []
    monkeypatch.setattr(module, "_asked", lambda *given, **_: asked.append(given[3]))
    verdict = module.check_rows(context, plan, staged, declared=False)
    assert asked == [(by_spark,)]
    assert [each.rule for each in verdict.results] == [by_writers, by_spark, counted]
    assert verdict.results[0].fails is fails
    assert (verdict.refused is None) is fails
