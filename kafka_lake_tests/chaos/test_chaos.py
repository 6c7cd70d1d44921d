"""A short chaos of a fixed seed for the suite: kills at steps, a lost answer and a rollback."""

from pathlib import Path

import pytest

from kafka_lake_tests.chaos.__main__ import run_chaos
from kafka_lake_tests.chaos.faults import LABELS
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

_SEED = 20_261_121
_ONCE = ("publication's answer lost", "rollback")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "labels",
    [("dead letters published",), exhaustive(LABELS)],
    ids=("between two publications", "at every step"),
)
def test_every_record_comes_once_after_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: tuple[str, ...]
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    faults = (*(f"kill at {label}" for label in labels), *_ONCE)
    verdict, tally = run_chaos(tmp_path, _SEED, lambda done, deck: done < deck, only=faults, tables=2)
    assert verdict.problems == []
    assert tally.killed_at == dict.fromkeys(labels, 1)
    assert verdict.figures["rows"] > 0
    assert verdict.figures["dead letters"] > 0
    assert verdict.figures["transactions committed"] > 0
    assert verdict.figures["transactions aborted"] > 0
    assert {name: tally.injected[name] for name in _ONCE} == dict.fromkeys(_ONCE, 1)
