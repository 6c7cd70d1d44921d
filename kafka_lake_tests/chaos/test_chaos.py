"""A short chaos of a fixed seed for the suite: a kill at every step, a zombie, a lost answer and a rollback."""

from pathlib import Path

import pytest

from kafka_lake_tests.chaos.__main__ import run_chaos
from kafka_lake_tests.chaos.faults import LABELS

pytestmark = pytest.mark.integration

_SEED = 20_261_121
_FAULTS = ("kill at", "zombie at audited", "publication's answer lost", "rollback")


@pytest.mark.timeout(600)
def test_whatever_strikes_every_record_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    verdict, tally = run_chaos(tmp_path, _SEED, lambda done, deck: done < deck, only=_FAULTS)
    assert verdict.problems == []
    assert {label: tally.killed_at.get(label, 0) for label in LABELS} == dict.fromkeys(LABELS, 1)
    assert verdict.figures["rows"] > 0
    assert verdict.figures["dead letters"] > 0
    assert verdict.figures["transactions committed"] > 0
    assert verdict.figures["transactions aborted"] > 0
    once = ("zombie at audited", "publication's answer lost", "rollback")
    assert {name: tally.injected[name] for name in once} == dict.fromkeys(once, 1)
