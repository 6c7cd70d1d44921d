"""A short version of the races for the suite."""

from pathlib import Path

import pytest

from kafka_lake_tests.chaos.races import run_races

pytestmark = pytest.mark.integration

_RACES = 12


@pytest.mark.exhaustive
def test_each_race_has_one_winner_whose_rows_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    score = run_races(tmp_path, _RACES, ingests=1)
    assert score.problems == []
    assert (score.races, score.ingests) == (_RACES, 1)
    assert score.wins.total() + score.rollbacks == _RACES
    assert score.refusals >= _RACES
