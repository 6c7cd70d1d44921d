"""Races between runs for one table: of all that stage from the same head, exactly one is published.

``python -m kafka_lake_tests.chaos.races --races 1000`` races at the protocol's level, with real branches and a real
catalog, and then lets some whole runs race, from topic to table. In every third race somebody rolls the table back
in the same moment, and wins alone or not at all.
"""

import argparse
import json
import logging
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import tenacity
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.exceptions import CommitFailedException
from pyspark.sql import SparkSession

from kafka_lake.catalog.branches import SEQUENCE_TAKEN, StagingBranch, branch_name
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import POSITION, ancestors, read_state, row_count
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.devstack.stack import interruptible
from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.server import ConnectServer
from kafka_lake.engine.settings import local_conf
from kafka_lake.errors import PublishRefusedError
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.run import ingest
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.contract.pairs import PAIRS, start_pair

_NAMESPACE = "races"
_RACES_PER_TABLE = 50
_SCHEMA = pa.schema([pa.field("race", pa.int64()), pa.field("contender", pa.int64())])
_WHO = TopicIdentity("cluster", "topic-id", "topic")
_SECONDS = 120.0
_ROLLBACK_EVERY = 3


@dataclass
class Score:
    """What came of the races.

    Args:
        races: How many there were at the protocol's level.
        wins: By contender.
        rollbacks: Races that were won by who rolled the table back.
        refusals: Publications that were refused.
        ingests: Races of whole runs.
        seconds: How long the protocol's races took.
        problems: What must not be; empty if all is well.
    """

    races: int = 0
    wins: Counter[int] = field(default_factory=Counter)
    rollbacks: int = 0
    refusals: int = 0
    ingests: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class Arena:
    """Catalog and Spark, and a session for each contender; a context manager.

    Args:
        folder: Data and logs.
        contenders: Runs that race for each table.
        pair: Catalog and storage, by name.
    """

    def __init__(self, folder: Path, contenders: int, pair: str = "rest_files") -> None:
        self.folder = folder
        self.contenders = contenders
        self.sessions: list[SparkSession] = []
        self._pair = pair
        self._properties: dict[str, str] = {}
        self._stack = ExitStack()

    def catalog(self) -> LakeCatalog:
        return LakeCatalog("lake", self._properties)

    def __enter__(self) -> Self:
        try:
            folder = self.folder / "catalog"
            folder.mkdir(parents=True)
            self._properties = self._stack.enter_context(start_pair(self._pair, folder))
            extra = {"spark.sql.shuffle.partitions": "2"}
            conf = local_conf(self.catalog().for_spark(), "local[2]", spark_jars(), extra)
            connect = self._stack.enter_context(ConnectServer(self.folder / "connect", conf=conf))
            for _ in range(self.contenders):
                session = SparkSession.builder.remote(connect.remote).create()
                self._stack.callback(session.stop)
                self.sessions.append(session)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def together(self, act: Callable[[int], Any], besides: Sequence[Callable[[], Any]] = ()) -> list[Any]:
        """Let every contender act at once; return what each returns, or the exception it ends with."""

        def guarded(item: Callable[[], Any]) -> Any:
            try:
                return item()
            except Exception as error:
                return error

        everybody = [*(partial(act, number) for number in range(self.contenders)), *besides]
        with ThreadPoolExecutor(len(everybody)) as pool:
            return list(pool.map(guarded, everybody))


def race_protocol(arena: Arena, races: int, score: Score, tell_user: Callable[[str], None]) -> None:
    """Race for the same head again and again: stage a row each, publish all at once."""
    catalogs = [arena.catalog() for _ in range(arena.contenders)]
    catalogs[0].ensure_namespace(_NAMESPACE)
    winners: list[tuple[int, int]] = []
    began = time.monotonic()
    for race in range(races):
        identifier = (_NAMESPACE, f"t{race // _RACES_PER_TABLE}")
        if race % _RACES_PER_TABLE == 0:
            table = catalogs[0].pyiceberg.create_table(identifier, _SCHEMA)
            table.append(_SCHEMA.empty_table(), {POSITION: Position(_WHO, {0: 0}).to_json()})
            winners = []
        back = bool(winners) and race % _ROLLBACK_EVERY == 0
        winner = _race(arena, catalogs, identifier, race, score, back)
        if winner == arena.contenders:
            winners.pop()
        elif winner is not None:
            winners.append((race, winner))
        last = race % _RACES_PER_TABLE == _RACES_PER_TABLE - 1 or race == races - 1
        if last:
            _compare(arena.catalog(), identifier, winners, score)
            score.seconds = time.monotonic() - began
            tell_user(f"{race + 1} races, {(race + 1) / score.seconds:.2f} a second, {len(score.problems)} problems")
    score.races = races
    score.seconds = time.monotonic() - began


def _race(
    arena: Arena, catalogs: list[LakeCatalog], identifier: tuple[str, str], race: int, score: Score, back: bool
) -> int | None:
    """Race once, and return who won: a contender, or as one more than these who rolled the table back."""
    table = catalogs[0].table(identifier)
    assert table is not None
    before = read_state(table)
    assert before.head is not None
    assert before.position is not None
    begin = before.position.offsets[0]
    head = before.head
    behind = next(s.parent_snapshot_id for s in ancestors(before.table, head))
    start = threading.Barrier(arena.contenders + back)
    branches: dict[int, tuple[StagingBranch, int]] = {}

    def contend(number: int) -> None:
        name = branch_name(f"race-{race}-{number}", head)
        branch = StagingBranch(arena.sessions[number], catalogs[number], identifier, name, head)
        try:
            branch.create()
            row = pa.table({"race": [race], "contender": [number]}, _SCHEMA)
            # No two contenders claim the same position.
            position = Position(_WHO, {0: begin + 1 + number})
            _stage(catalogs[number], identifier, row, position, branch.name)
            staged = branch.staged_snapshot()
            assert staged is not None
            branches[number] = (branch, staged)
        finally:
            start.wait(_SECONDS)
        branch.publish(staged)

    def roll_back() -> None:
        theirs = arena.catalog().table(identifier)
        assert theirs is not None
        assert behind is not None
        change = theirs.manage_snapshots().rollback_to_snapshot(behind)
        start.wait(_SECONDS)
        change.commit()

    outcomes = arena.together(contend, [roll_back] if back else [])
    won = [number for number, outcome in enumerate(outcomes) if outcome is None]
    refused = [outcome for outcome in outcomes if isinstance(outcome, PublishRefusedError | CommitFailedException)]
    score.wins.update(number for number in won if number < arena.contenders)
    score.rollbacks += won == [arena.contenders]
    score.refusals += len(refused)
    if len(won) != 1 or len(won) + len(refused) != len(outcomes):
        score.problems.append(f"race {race}: contenders {won} won, the outcomes are {outcomes}")
    after = read_state(table.refresh())
    if won == [arena.contenders]:
        if after.head != behind:
            score.problems.append(f"race {race}: main was rolled back to {behind}, and is {after.head}")
    elif len(won) == 1:
        _, staged = branches[won[0]]
        carried = after.position.offsets if after.position else None
        if after.head != staged or carried != {0: begin + 1 + won[0]}:
            score.problems.append(f"race {race}: {won[0]} won, but main is {after.head} at {carried}")
    # One after the other: branches that are dropped at the same moment may be left behind, invisible.
    for branch, _ in branches.values():
        branch.drop()
    return won[0] if len(won) == 1 else None


@tenacity.retry(
    # Another contender's row has got the sequence number; with a lock to wait for, PyIceberg takes it for a mistake.
    retry=tenacity.retry_if_exception_message(match=SEQUENCE_TAKEN),
    stop=tenacity.stop_after_delay(_SECONDS / 2),
    reraise=True,
)
def _stage(catalog: LakeCatalog, identifier: tuple[str, str], row: pa.Table, position: Position, branch: str) -> None:
    table = catalog.table(identifier)
    assert table is not None
    table.append(row, {POSITION: position.to_json()}, branch=branch)


def _compare(catalog: LakeCatalog, identifier: tuple[str, str], winners: list[tuple[int, int]], score: Score) -> None:
    table = catalog.table(identifier)
    assert table is not None
    rows = table.scan().to_arrow()
    held = sorted(zip(rows["race"].to_pylist(), rows["contender"].to_pylist(), strict=True))
    if held != winners or row_count(table) != len(winners):
        wrong = sorted((Counter(held) - Counter(winners)) + (Counter(winners) - Counter(held)))
        score.problems.append(f"table {'.'.join(identifier)} doesn't hold exactly the winners' rows: {wrong[:5]}")
    if set(table.metadata.refs) != {"main"}:
        score.problems.append(f"table {'.'.join(identifier)} still has {sorted(table.metadata.refs)}")


def race_ingests(
    arena: Arena, broker: EmbeddedBroker, races: int, score: Score, tell_user: Callable[[str], None]
) -> None:
    """Let whole runs race for the same records; they set off together from a different step each time."""
    address = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    admin = AdminClient(address)
    admin.create_topics([NewTopic("races", 2, 1)])["races"].result(20)
    spec = TopicTable("races", _NAMESPACE, "from_kafka", schema="id bigint", on_data_loss="continue")
    producer = Producer({**address, "linger.ms": 5})
    sent = 0
    for race in range(races):
        for _ in range(20):
            producer.produce("races", json.dumps({"id": sent}) if sent % 5 else b"junk %d" % sent, partition=sent % 2)
            sent += 1
        assert producer.flush(20) == 0
        reports = arena.together(_contender(arena, broker, spec, race))
        for report in reports:
            if not isinstance(report, RunReport):
                score.problems.append(f"race {race} of whole runs: {report!r}")
        taken = [report.total("records") for report in reports if isinstance(report, RunReport)]
        if sum(taken) != 20:
            score.problems.append(f"race {race} of whole runs: 20 records were sent, the runs took {taken}")
        catalog = arena.catalog()
        rows, letters = catalog.table(spec.identifier), catalog.table(spec.dead_letter_table)
        ids = sorted(rows.scan().to_arrow()["id"].to_pylist()) if rows else []
        dead = sorted(int(v.split()[1]) for v in letters.scan().to_arrow()["value"].to_pylist()) if letters else []
        if ids != [n for n in range(sent) if n % 5] or dead != [n for n in range(sent) if n % 5 == 0]:
            score.problems.append(f"race {race} of whole runs: {sent} sent, {len(ids)} rows, {len(dead)} dead letters")
        score.ingests += 1
        tell_user(f"{race + 1} races of whole runs, {len(score.problems)} problems")


def _contender(arena: Arena, broker: EmbeddedBroker, spec: TopicTable, race: int) -> Callable[[int], RunReport]:
    step = ("planned", "table staged", "dead letters staged", "audited")[race % 4]
    start = threading.Barrier(arena.contenders)
    cluster = {"bootstrap.servers": broker.bootstrap_servers}
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "kafka.isolation.level": "read_committed"}

    def run(number: int) -> RunReport:
        waited: list[str] = []

        def step_done(done: str) -> None:
            if done == step and not waited:
                waited.append(done)
                start.wait(_SECONDS)

        connections = Connections(KafkaCluster(cluster), options, arena.catalog(), lambda: arena.sessions[number])
        return ingest(spec, connections, f"race-{race}-{number}", observer=Observer(step_done=step_done))

    return run


def run_races(
    folder: Path,
    races: int,
    ingests: int,
    contenders: int = 2,
    tell_user: Callable[[str], None] = print,
    pair: str = "rest_files",
) -> Score:
    """Race, and return what came of it."""
    score = Score()
    with Arena(folder, contenders, pair) as arena:
        race_protocol(arena, races, score, tell_user)
        if ingests:
            with EmbeddedBroker(folder / "kafka", heap="384m") as broker:
                race_ingests(arena, broker, ingests, score, tell_user)
    return score


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kafka_lake_tests.chaos.races", description=__doc__)
    parser.add_argument("--races", type=int, default=1000, help="races at the protocol's level (%(default)s)")
    parser.add_argument("--ingests", type=int, default=10, help="races of whole runs (%(default)s)")
    parser.add_argument("--pair", choices=sorted(PAIRS), default="rest_files", help="catalog and storage (%(default)s)")
    parser.add_argument("--contenders", type=int, default=2, help="how many race each time (%(default)s)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kafka-lake-races-"))
    # A branch that is left behind is what this counts, not what it shall print.
    logging.getLogger("kafka_lake").setLevel(logging.ERROR)
    with interruptible():
        score = run_races(folder, options.races, options.ingests, options.contenders, _tell_user, options.pair)
    wins = ", ".join(f"run {number} won {count}" for number, count in sorted(score.wins.items()))
    summary = (
        f"{score.races} races of {options.contenders} commits in {score.seconds:.0f} s: {wins}, a rollback won "
        f"{score.rollbacks}; {score.refusals} commits refused; {score.ingests} races of whole runs"
    )
    _tell_user(summary)
    for problem in score.problems:
        _tell_user(f"WRONG: {problem}")
    if score.problems:
        _tell_user(f"Everything is kept in {folder}.")
        sys.exit(1)
    shutil.rmtree(folder)
    _tell_user(f"{summary}; each race had one winner, and the tables hold the winners' rows")


def _tell_user(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
