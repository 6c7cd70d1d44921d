"""Proof by chaos: faults at random on real systems while topics become tables, then a count of every record.

``python -m kafka_lake_tests.chaos --minutes 10`` exits 0 only if every committed record is there exactly once.
"""

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kafka_lake.devstack.stack import interruptible
from kafka_lake_tests.chaos.cdc import run_cdc_chaos
from kafka_lake_tests.chaos.faults import LABELS, Chaos, Tally
from kafka_lake_tests.chaos.rounds import ChaosError, catch_up, chosen, count, first_tables, strike
from kafka_lake_tests.chaos.sabotage import SABOTAGES
from kafka_lake_tests.chaos.verify import PositionWatch, Verdict, verify
from kafka_lake_tests.chaos.world import World
from kafka_lake_tests.transactions import await_transactions


def run_chaos(
    folder: Path,
    seed: int,
    go_on: Callable[[int, int], bool],
    brokers: int = 1,
    only: tuple[str, ...] = (),
    sabotage: str | None = None,
    tell_user: Callable[[str], None] = print,
    tables: int = 5,
) -> tuple[Verdict, Tally]:
    """Strike until it is enough, let the tables catch up, and verify.

    Args:
        folder: Data and logs of all systems; must be empty.
        seed: Decides faults and records.
        go_on: Told how many rounds there were and how many faults one deck has; returns whether another shall follow.
        brokers: 1 or 3.
        only: Faults whose names begin so; empty for all.
        sabotage: Breaks the protocol in every run.
        tell_user: Called with a line of progress.
        tables: How many the first topic has.
    """
    chance = random.Random(seed)
    tally = Tally()
    again = f"make chaos SEED={seed} BROKERS={brokers}" + (f" FAULTS='{','.join(only)}'" if only else "")
    (folder / "README").write_text(f"Seed {seed}. To repeat it: {again}\n")

    def reported(line: str) -> None:
        with (folder / "faults.log").open("a") as file:
            file.write(line + "\n")
        tell_user(line)

    with World(folder, brokers, seed, sabotage, reported) as world:
        declared = world.traffic.new_topic("orders", declared=True, partitions=3, tables=tables)
        inferred = world.traffic.new_topic("clicks", declared=False, partitions=2)
        topics = [declared, inferred]
        for topic in topics:
            world.traffic.burst(topic)
        chaos = Chaos(world, topics, chance, tally)
        watch = PositionWatch(world.catalog())
        first_tables(chaos)
        world.traffic.start(topics)
        faults = chosen(chaos, only)
        hung = strike(chaos, faults, watch, go_on)
        reported("faults off; catching up")
        world.traffic.stop()
        partitions = {topic.name: topic.partitions for topic in world.traffic.topics.values()}
        await_transactions(world.brokers.bootstrap_servers, partitions)
        failures = catch_up(chaos)
        watch.look(world.traffic.topics)
        _write_ledger(world, folder / "ledger.jsonl")
        verdict = verify(world)
        verdict.problems = hung + failures + chaos.problems + watch.problems + verdict.problems
        (folder / "verdict").write_text("\n".join([*verdict.problems, *verdict.notes, ""]))
        count(world, verdict, LABELS)
        return verdict, tally


def _write_ledger(world: World, file: Path) -> None:
    """Write down what was sent, so that it is there whatever comes of looking for it."""
    with file.open("w") as lines:
        for topic in world.traffic.topics.values():
            for sent in topic.ledger.values():
                reported = {"topic": topic.name, **asdict(sent), "fate": sent.fate.value}
                lines.write(
                    json.dumps(reported | {"value": sent.value.hex() if sent.value is not None else None}) + "\n"
                )


def print_report(console: Console, verdict: Verdict, tally: Tally, title: str) -> None:
    faults = Table("fault", "injected", "survived", title=title)
    survived = "yes" if not verdict.problems else "see below"
    for name, times in sorted(tally.injected.items()):
        faults.add_row(name, str(times), survived)
    console.print(faults)
    kills = Table("SIGKILL at step", "times")
    for label in sorted({*LABELS, *tally.killed_at}):
        kills.add_row(label, str(tally.killed_at.get(label, 0)))
    console.print(kills)
    figures = Table("figure", "value")
    for name, figure in verdict.figures.items():
        figures.add_row(name, f"{figure:,}")
    for outcome, times in tally.outcomes.items():
        figures.add_row(f"runs {outcome}", str(times))
    if tally.recoveries:
        figures.add_row("first commit after SIGKILL, median", f"{statistics.median(tally.recoveries):.1f} s")
        figures.add_row("first commit after SIGKILL, longest", f"{max(tally.recoveries):.1f} s")
    console.print(figures)
    for note in verdict.notes:
        console.print(f"note: {note}", markup=False)
    for problem in verdict.problems:
        console.print(f"WRONG: {problem}", markup=False, soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kafka_lake_tests.chaos", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="how long faults are injected")
    length.add_argument("--rounds", type=int, help="how many faults are injected; by default each once")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--faults", default="", help="comma-separated beginnings of the names of faults")
    parser.add_argument("--sabotage", choices=sorted(SABOTAGES), help="break the protocol: the chaos must notice")
    parser.add_argument("--cdc", action="store_true", help="a database, captured by Debezium")
    parser.add_argument("--work-dir", type=Path, help="empty or new folder for data and logs, which is kept")
    options = parser.parse_args()
    began = time.monotonic()

    def go_on(done: int, deck: int) -> bool:
        if options.minutes is not None:
            return time.monotonic() - began < options.minutes * 60
        return done < (options.rounds if options.rounds is not None else deck)

    console = Console(width=110)
    console.print(f"seed {options.seed}")
    folder = options.work_dir or Path(tempfile.mkdtemp(prefix="kafka-lake-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    only = tuple(name.strip() for name in options.faults.split(",") if name.strip())
    with interruptible(), _told():
        if options.cdc:
            verdict, tally = run_cdc_chaos(folder, options.seed, go_on, only, _tell_user)
        else:
            verdict, tally = run_chaos(folder, options.seed, go_on, options.brokers, only, options.sabotage, _tell_user)
    print_report(console, verdict, tally, f"Chaos, seed {options.seed}, {time.monotonic() - began:.0f} s")
    if verdict.problems:
        console.print(f"Seed {options.seed}; everything is kept in {folder}.")
        sys.exit(1)
    if not options.work_dir:
        shutil.rmtree(folder)
    what = "each row is as it is in the database" if options.cdc else "each committed record is there exactly once"
    faults, kinds = sum(tally.injected.values()), len(tally.injected)
    of_tables = ("rows in the database", "changes in the history") if options.cdc else ("rows", "dead letters")
    figures = ", ".join(f"{verdict.figures[name]:,} {name}" for name in (*of_tables, "runs", "commits"))
    print(f"seed {options.seed}: {faults} faults of {kinds} kinds, {figures}; {what}")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ChaosError as error:
        raise SystemExit(str(error)) from None


def _tell_user(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
