"""What must hold once the faults are over: every committed record once, as it was sent, and nothing left behind."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.table import Table

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import ancestors, head_of, read_state
from kafka_lake.ingest.published import examine
from kafka_lake.maintenance.clean import clean
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.verify.run import verify as verify_table
from kafka_lake_tests.chaos.traffic import Fate, Sent, Topic, consumed
from kafka_lake_tests.chaos.world import World

_PREFIX = "kafka_lake_"
_SHOWN = 5

Place = tuple[int, int]


@dataclass
class Verdict:
    """What is wrong, and what there is.

    Args:
        problems: One line each; empty if all is well.
        notes: What was not looked at, or is worth knowing.
        figures: How much there is of what.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)


class PositionWatch:
    """Sees to it that what was published stays published: no table's position ever goes back."""

    def __init__(self, catalog: LakeCatalog) -> None:
        self._catalog = catalog
        self._furthest: dict[str, dict[int, int]] = {}
        self.problems: list[str] = []

    def look(self, topics: Mapping[str, Topic]) -> None:
        for topic, spec in [(item, spec) for item in topics.values() for spec in item.spec.tables]:
            table = self._catalog.table(spec.identifier)
            position = read_state(table).position if table else None
            before = self._furthest.setdefault(spec.table, {})
            now = dict(position.offsets) if position else {}
            for partition, offset in before.items():
                if now.get(partition, 0) < offset:
                    self.problems.append(
                        f"topic {topic.name}: published records vanished, the position of partition {partition} went "
                        f"back from {offset} to {now.get(partition, 0)}"
                    )
            before |= now


def verify(world: World) -> Verdict:
    """Compare what was produced with what is in the tables; call it with all faults off and all runs done."""
    verdict = Verdict()
    for topic in world.traffic.topics.values():
        _verify_topic(world, topic, verdict)
    clean_up(world, verdict)
    for topic in world.traffic.topics.values():
        for spec in topic.spec.tables:
            nothing_left(world.catalog(), spec, verdict)
    verdict.problems += world.traffic.errors
    return verdict


def _verify_topic(world: World, topic: Topic, verdict: Verdict) -> None:
    problems = _Problems(verdict, topic.name)
    truth = consumed(world.brokers.bootstrap_servers, topic)
    _ledger_against_topic(topic, truth, problems)
    verdict.figures["records aborted"] += sum(s.fate is Fate.ABORTED for s in topic.ledger.values())
    verdict.figures["records in doubt"] += sum(s.fate is Fate.UNKNOWN for s in topic.ledger.values())
    verdict.figures["records committed"] += len(truth)
    for number, spec in enumerate(topic.spec.tables):
        its = {place: record for place, record in truth.items() if topic.table_of(record[0]) == number}
        _verify_table(world, topic, spec, its, _Problems(verdict, f"{topic.name}, table {spec.table}"))


def _verify_table(
    world: World, topic: Topic, spec: TopicTable, truth: Mapping[Place, tuple[str, bytes | None]], problems: "_Problems"
) -> None:
    catalog, verdict = world.catalog(), problems.verdict
    table = catalog.table(spec.identifier)
    if table is None:
        problems("there is no table")
        return
    rows, letters = _rows(table), _rows(catalog.table(spec.dead_letter_table))
    in_table, in_letters = _row_places(rows), _letter_places(letters)
    expected = Counter(place for place, (_, value) in truth.items() if value is not None)
    held = in_table + in_letters
    problems.places("records are missing", expected - held)
    problems.places("records are there too often", held - expected)
    good = {place for place, (key, _) in truth.items() if topic.ledger[key].good}
    problems.places("good records are dead letters", Counter(p for p in in_letters if p in good))
    problems.places("bad records are rows", Counter(p for p in in_table if p in expected and p not in good))
    _values(topic, truth, rows, letters, problems)
    now = world.cluster().watermarks_of(topic.name)
    position = read_state(table).position
    if position is None or dict(position.offsets) != dict(now.end):
        problems(f"position {position.offsets if position else None} isn't the end {dict(now.end)}")
    history = {snapshot.snapshot_id for snapshot in ancestors(table, head_of(table))}
    for event in sorted(world.rolled_away.get(topic.name, set()) & history):
        problems(f"snapshot {event} was rolled back and is in main again")
    for finding in examine(spec, catalog, world.cluster()):
        for problem in finding.problems:
            problems(f"check {finding.check}: {problem}")
    verdict.figures += Counter({"rows": len(rows), "dead letters": len(letters)})
    verdict.figures["tombstones"] += len(truth) - len(expected)
    verdict.figures["snapshots at the end"] += len(table.metadata.snapshots)


def places(catalog: LakeCatalog, topic: Topic) -> Counter[Place]:
    """Return how often each record of a topic is there, as a row or as a dead letter."""
    rows, letters = (_rows(catalog.table(table)) for table in (topic.spec.identifier, topic.spec.dead_letter_table))
    return _row_places(rows) + _letter_places(letters)


def _rows(table: Table | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist() if table else []
    return found


def _row_places(rows: list[dict[str, Any]]) -> Counter[Place]:
    return Counter((row["_kafka"]["partition"], row["_kafka"]["offset"]) for row in rows)


def _letter_places(letters: list[dict[str, Any]]) -> Counter[Place]:
    return Counter((letter["partition"], letter["offset"]) for letter in letters)


class _Problems:
    def __init__(self, verdict: Verdict, topic: str) -> None:
        self.verdict = verdict
        self._topic = topic

    def __call__(self, problem: str) -> None:
        self.verdict.problems.append(f"topic {self._topic}: {problem}")

    def places(self, what: str, wrong: Counter[Place]) -> None:
        if wrong:
            first = ", ".join(f"partition {p} offset {o}" for p, o in sorted(wrong)[:_SHOWN])
            self(f"{wrong.total()} {what}, the first: {first}")


def _ledger_against_topic(topic: Topic, truth: Mapping[Place, tuple[str, bytes | None]], problems: _Problems) -> None:
    at: dict[str, list[Place]] = {}
    for place, (key, value) in truth.items():
        at.setdefault(key, []).append(place)
        sent = topic.ledger.get(key)
        if sent is None or sent.value != value:
            problems(f"the broker holds at {place} what nobody sent: {key}")
    wrong: list[Sent] = []
    for sent in topic.ledger.values():
        places = at.get(sent.key, [])
        right = {
            Fate.COMMITTED: places == [(sent.partition, sent.offset)],
            Fate.ABORTED: places == [],
            Fate.UNKNOWN: len(places) <= 1,
        }
        if not right[sent.fate]:
            wrong.append(sent)
    if wrong:
        problems(
            f"the ledger and the broker disagree on {len(wrong)} records, as on {wrong[0]}: {at.get(wrong[0].key)}"
        )


def _values(
    topic: Topic,
    truth: Mapping[Place, tuple[str, bytes | None]],
    rows: list[dict[str, Any]],
    letters: list[dict[str, Any]],
    problems: _Problems,
) -> None:
    wrong: Counter[Place] = Counter()
    for row in rows:
        place = (row["_kafka"]["partition"], row["_kafka"]["offset"])
        key, value = truth.get(place, ("", None))
        if not key or not topic.ledger[key].good or value is None:
            continue
        columns = {name: column for name, column in row.items() if name != "_kafka"}
        produced = json.loads(value)
        if columns != {**dict.fromkeys(columns), **produced}:
            wrong[place] += 1
    for letter in letters:
        place = (letter["partition"], letter["offset"])
        if place in truth and truth[place][1] != letter["value"]:
            wrong[place] += 1
    problems.places("records differ from what was sent", wrong)


def clean_up(world: World, verdict: Verdict) -> None:
    """Remove what dead runs left, and let `kafka-lake verify` judge each table."""
    spark, options = world.session(), {"kafka.bootstrap.servers": world.brokers.bootstrap_servers}
    try:
        connections = Connections(world.cluster(), options, world.catalog(), lambda: spark)
        tables = [(topic.spec, spec) for topic in world.traffic.topics.values() for spec in topic.spec.tables]
        for of_topic, spec in tables:
            clean(spec, connections, older_than_seconds=0)
            verdict.problems += map(str, verify_table(of_topic, spec, connections, sample=1.0).problems)
    finally:
        spark.stop()


def nothing_left(catalog: LakeCatalog, spec: TopicTable, verdict: Verdict) -> None:
    for identifier in spec.identifiers:
        table = catalog.table(identifier)
        if table is None:
            continue
        name = ".".join(identifier)
        branches = [ref for ref in table.metadata.refs if ref.startswith(_PREFIX)]
        orphans = _files(table) - _referred_to(table)
        lost = _referred_to(table) - _files(table)
        verdict.figures["branches left"] += len(branches)
        verdict.figures["orphan files left"] += len(orphans)
        if lost:
            verdict.problems.append(f"table {name}: {len(lost)} data files are gone, such as {min(lost)}")
        if branches:
            verdict.problems.append(f"table {name}: {len(branches)} branches are left after cleaning: {branches[:3]}")
        if orphans:
            verdict.problems.append(f"table {name}: {len(orphans)} orphan files after cleaning, such as {min(orphans)}")


def _files(table: Table) -> set[str]:
    return {str(path) for path in _path(table.location()).glob("data/**/*.parquet")}


def _referred_to(table: Table) -> set[str]:
    return {str(_path(file)) for file in table.inspect.all_files()["file_path"].to_pylist()}


def _path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))
