"""The verdict on a commit whose rules are asked by several."""

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_lake.ingest.rule import NullShare, RuleEntry, rules_of
from kafka_lake.ingest.rules.by_arrow import Answers
from kafka_lake.ingest.rules.evaluate import Verdict
from kafka_lake.ingest.rules.result import RuleResult
from kafka_lake.ingest.stage import judge as module


@pytest.mark.parametrize(("told", "fails"), [(0, True), (10, False)])
def test_no_record_is_refused_where_a_rule_fails_that_the_writers_asked(
    told: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_writers, by_spark = rules_of([RuleEntry(null_share=NullShare("a", "50%")), RuleEntry(unique=("b",))])
    found: Any = Verdict((RuleResult(by_spark, 10, 1),), refused=SimpleNamespace())  # type: ignore[arg-type]
    context: Any = SimpleNamespace(
        spec=SimpleNamespace(named_rules=(by_writers, by_spark)),
        decoding=SimpleNamespace(evaluate=lambda _: found),
        observer=SimpleNamespace(step_done=lambda _: None),
    )
    staged: Any = SimpleNamespace(rows=10, answers=Answers(10, {by_writers.name: (told, 0, ())}))
    plan: Any = SimpleNamespace(undecodable=None, kind="append", share=None)
    monkeypatch.setattr(module, "_asked", lambda *_, **__: None)
    monkeypatch.setattr(module, "_by_statistics", lambda *_: {})
    verdict = module.judge(context, plan, staged, declared=False)
    assert verdict.results[0].fails is fails
    assert (verdict.refused is None) is fails
