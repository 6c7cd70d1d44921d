"""A short chaos of a fixed seed for the suite: kills at steps and a lost answer; if exhaustive, a rollback too."""

from pathlib import Path

import pytest

from kafka_lake_tests.chaos.__main__ import run_chaos
from kafka_lake_tests.chaos.faults import LABELS
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

_SEED = 20_261_121
_LOST, _ROLLBACK = "publication's answer lost", "rollback"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("labels", "once"),
    [(("dead letters published",), (_LOST,)), exhaustive(LABELS, (_LOST, _ROLLBACK))],
    ids=("between two publications", "at every step"),
)
def test_every_record_comes_once_after_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: tuple[str, ...], once: tuple[str, ...]
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    faults = (*(f"kill at {label}" for label in labels), *once)
    verdict, tally = run_chaos(tmp_path, _SEED, lambda done, deck: done < deck, only=faults, tables=2)
    assert verdict.problems == []
    assert tally.killed_at == dict.fromkeys(labels, 1)
    assert verdict.figures["rows"] > 0
    assert verdict.figures["dead letters"] > 0
    assert verdict.figures["transactions committed"] > 0
    assert verdict.figures["transactions aborted"] > 0
    assert {name: tally.injected[name] for name in once} == dict.fromkeys(once, 1)
