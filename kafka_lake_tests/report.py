"""Runs the long lanes of tests and writes what came of each into ``docs/verification.md``.

``python -m kafka_lake_tests.report`` runs all lanes, ``python -m kafka_lake_tests.report chaos soak`` two. A lane that
fails isn't written: mend what it shows and run it again.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.page import between
from benchmarks.results import in_markdown, machine

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs" / "verification.md"
RESULTS = PROJECT / "docs" / "verification"
HEADER = ("What is run", "Lane", "Time", "Result", "When")


@dataclass(frozen=True)
class Lane:
    """Tests that run for minutes or hours; the last line of their output is their result."""

    title: str
    command: str


def _pytest(arguments: str, variables: str = "") -> str:
    return f"{variables} .venv/bin/pytest -q -p no:cacheprovider {arguments}".strip()


LANES = {
    "model": Lane(
        "Random histories of runs, simulated",
        _pytest(
            "-n 2 --timeout 0 kafka_lake_tests/unit/ingest/test_protocol_model.py -k every_history",
            "MODEL_EXAMPLES=5000",
        ),
    ),
    "crash-points": Lane(
        "Each kind of run, killed after each step",
        _pytest("kafka_lake_tests/integration/test_every_writer.py"),
    ),
    "chaos": Lane("Random faults on a real broker, Spark and catalog", "make -s chaos MINUTES=60 SEED=42"),
    "chaos-brokers": Lane("The same with three brokers", "make -s chaos MINUTES=30 SEED=43 BROKERS=3"),
    "chaos-cdc": Lane("The same with PostgreSQL and Debezium", "make -s chaos MINUTES=30 SEED=44 CDC=1"),
    "races-rest": Lane("Runs race for one table, REST catalog on files", "make -s races RACES=1000 PAIR=rest_files"),
    "races-sql": Lane("The same, PostgreSQL catalog on an object store", "make -s races RACES=1000 PAIR=postgres_s3"),
    "fuzz-json": Lane("Random JSON against an independent decoder", "make -s fuzz N=1000000 SEED=42"),
    "fuzz-avro": Lane(
        "The same with damaged Avro: 100,000 inputs, 200 schemas",
        _pytest("-n 2 -m exhaustive -k more_damaged kafka_lake_tests/fuzz/test_avro.py"),
    ),
    "fuzz-protobuf": Lane(
        "Damaged Protobuf against Google's parser: 100,000 inputs",
        _pytest("kafka_lake_tests/fuzz/test_protobuf_values.py", "FUZZ_INPUTS=100000"),
    ),
    "mutants": Lane("Mutations of the code", "make -s mutants"),
    "soak": Lane("Ten topics for an hour", "make -s soak MINUTES=60"),
}


def run(name: str) -> bool:
    """Run a lane, show its output, write its result and the page if it passes, and return whether it passed."""
    began, last = time.monotonic(), ""
    shell = ["bash", "-c", LANES[name].command]
    with subprocess.Popen(shell, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip(" =\n") or last
    if process.returncode:
        print(f"{name} failed with exit code {process.returncode}", file=sys.stderr)
        return False
    result = {
        "lane": name,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "command": LANES[name].command,
        "seconds": round(time.monotonic() - began),
        "result": last,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    PAGE.write_text(between("lanes").sub(lambda _: f"{table()}\n", PAGE.read_text()))
    return True


def table() -> str:
    """Return the page's table of all lanes."""
    return in_markdown(HEADER, [_row(name) for name in LANES])


def _row(name: str) -> tuple[str, ...]:
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return (LANES[name].title, f"`{name}`", "", "not run yet", "")
    result: dict[str, Any] = json.loads(path.read_text())
    minutes = f"{result['seconds'] / 60:.0f} min" if result["seconds"] >= 60 else f"{result['seconds']} s"
    return (LANES[name].title, f"`{name}`", minutes, result["result"], result["made"][:10])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kafka_lake_tests.report", description=__doc__)
    parser.add_argument("lanes", nargs="*", metavar="lane", help=f"{', '.join(LANES)}; all by default")
    lanes = parser.parse_args().lanes or list(LANES)
    if unknown := set(lanes) - set(LANES):
        parser.error(f"there is no lane {', '.join(sorted(unknown))}")
    passed = [run(name) for name in lanes]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
