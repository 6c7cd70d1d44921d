"""The contract over the pairs: tests, then races; what came of it as a table.

``python -m kafka_lake_tests.contract`` runs all pairs, ``… rest_s3 postgres_s3`` some. It exits 1 if anything failed.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from kafka_lake_tests.chaos.races import Score, run_races
from kafka_lake_tests.contract.pairs import PAIRS

_TESTS = Path(__file__).parents[1]
# A test that is interrupted in a call to Spark breaks the gateway for all that come after it.
_SECONDS = 900
WHAT = "every_pair or in_contract"
"""The marked tests make up the contract, all cases of each; others are about formats, commands and settings, whatever
the catalog."""
FOLDERS = ("decode", "integration", "contract")
"""Where tests may be marked so."""


@dataclass(frozen=True)
class Outcome:
    """What came of a pair.

    Args:
        pair: Its name.
        passed: Tests that passed.
        failed: Names of those that didn't.
        races: What came of the races.
    """

    pair: str
    passed: int
    failed: tuple[str, ...]
    races: Score

    @property
    def good(self) -> bool:
        return bool(self.passed) and not self.failed and not self.races.problems


def judge(pair: str, races: int, folder: Path, pytest_options: Sequence[str]) -> Outcome:
    """Run the contract's tests and races with one pair."""
    report = folder / f"{pair}.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        WHAT,
        "--pair",
        pair,
        f"--junitxml={report}",
        f"--timeout={_SECONDS}",
    ]
    subprocess.run([*command, *pytest_options, *(str(_TESTS / item) for item in FOLDERS)], check=False)
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    failed = tuple(f"{case.get('classname')}::{case.get('name')}" for case in bad)
    score = run_races(folder / f"{pair}-races", races, ingests=1, contenders=3, pair=pair)
    return Outcome(pair, len(cases) - len(bad), failed, score)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kafka_lake_tests.contract", description=__doc__)
    parser.add_argument("pairs", nargs="*", default=sorted(PAIRS), help="of catalog and storage; all by default")
    parser.add_argument("--races", type=int, default=50, help="races of three for each pair (%(default)s)")
    parser.add_argument("--pytest", default="", help="more options of pytest, with spaces between")
    options = parser.parse_args()
    console = Console(width=110)
    table = Table("pair", "tests passed", "failed", "races of three", "one winner each", "refused")
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="kafka-lake-contract-") as folder:
        for pair in options.pairs:
            outcome = judge(pair, options.races, Path(folder), options.pytest.split())
            outcomes.append(outcome)
            score = outcome.races
            won = score.wins.total() + score.rollbacks
            figures = (outcome.passed, len(outcome.failed), score.races, won, score.refusals)
            table.add_row(pair, *map(str, figures))
    console.print(table)
    for outcome in outcomes:
        for line in (*outcome.failed, *outcome.races.problems):
            console.print(f"{outcome.pair}: {line}")
    sys.exit(0 if all(item.good for item in outcomes) else 1)


if __name__ == "__main__":
    main()
