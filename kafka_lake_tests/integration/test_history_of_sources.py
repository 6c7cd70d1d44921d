"""Histories of random sources: the versions of each row are those that the source had, however its changes are told.

What they shall be is computed from the changes alone, without a word of Kafka's: their order is the source's to say.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from kafka_lake.ingest.run import ingest, replay
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.history_versions import Told, assert_versions, versions
from kafka_lake_tests.integration.test_exactly_once import killed_at  # noqa: F401

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
UNSENT = "__debezium_unavailable_value"


def refused(view: View) -> set[tuple[int, int]]:
    """Return the places of changes that lack a value which was not sent, and that nothing had told by then."""
    letters = view.dead_letters()
    assert {row["error_class"] for row in letters} <= {"value_not_sent"}
    return {(row["partition"], row["offset"]) for row in letters}


@dataclass
class Database:
    """A table of a PostgreSQL database, and what Debezium tells of it, to whatever partition comes to its mind."""

    chance: random.Random
    topic: Topic
    keys: int
    columns: tuple[str, ...] = ("n", "state", "big")
    changes: dict[int, list[Told]] = field(default_factory=lambda: defaultdict(list))
    _rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    _unsent: list[tuple[int, Told, list[Any]]] = field(default_factory=list)
    _lsn: int = 100
    _clock: int = 0

    def work(self, count: int) -> None:
        """Change rows; nothing is told yet."""
        for _ in range(count):
            key, commit = self.chance.randrange(self.keys), self._lsn
            self._lsn += self.chance.randint(1, 9)
            # Clocks go back at times, and several changes have one time.
            self._clock += self.chance.choice((-3, 0, 0, 1, 1, 5, 60))
            self._change(key, (commit, self._lsn, 1))

    def snapshot(self) -> None:
        """Let Debezium read all rows once more."""
        for key, row in self._rows.items():
            self._tell(key, "r", (self._lsn, 0, 0), {name: row.get(name) for name in self.columns})

    def send(self, share: float) -> None:
        """Send what there is to tell, in any order; some of it only later."""
        self.chance.shuffle(self._unsent)
        count = int(len(self._unsent) * share)
        now, self._unsent = self._unsent[:count], self._unsent[count:]
        for event in now:
            self._deliver(*event)
            if self.chance.random() < 0.15:
                # A connector that was killed tells it once more.
                self._unsent.append(event)

    def _change(self, key: int, order: tuple[int, int, int]) -> None:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._values()
            self._tell(key, "c", order, row)
        elif self.chance.random() < 0.25:
            del self._rows[key]
            self._tell(key, "d", order, None)
        else:
            reported = {
                name: value if self.chance.random() < 0.4 else row.get(name) for name, value in self._values().items()
            }
            keeps = frozenset(["big"] if reported["big"] == row["big"] and self.chance.random() < 0.8 else [])
            self._rows[key] = reported
            self._tell(key, "u", order, reported, keeps)

    def _values(self) -> dict[str, Any]:
        made = {
            "n": self.chance.randrange(3),
            "state": self.chance.choice("xyz"),
            "big": f"big {self.chance.randrange(9)}",
        }
        return {name: made.get(name, self.chance.choice((None, "a", "b"))) for name in self.columns}

    def _tell(
        self,
        key: int,
        op: str,
        order: tuple[int, int, int],
        row: dict[str, Any] | None,
        keeps: frozenset[str] = frozenset(),
    ) -> None:
        commit, lsn, _ = order
        at = BEGIN + timedelta(seconds=self._clock)
        source = {"connector": "postgresql", "lsn": lsn or commit, "ts_ms": int(at.timestamp() * 1000),
                  "sequence": json.dumps([str(commit), str(lsn or commit)])}  # fmt: skip
        after = None if row is None else {"id": key, **row, **dict.fromkeys(keeps, UNSENT)}
        envelope = {"before": None, "after": after, "op": op, "source": source}
        reported = Told(order, at, row and dict(row), keeps, is_delete=op == "d")
        self._unsent.append((key, reported, [envelope, None] if op == "d" else [envelope]))

    def _deliver(self, key: int, reported: Told, records: list[Any]) -> None:
        partition = self.chance.randrange(3)
        of_record = json.dumps({"id": key}).encode()
        sent = [self.topic.send(record, partition, key=of_record) for record in records]
        self.changes[key].append(replace(reported, order=(*reported.order, *sent[0].place), place=sent[0].place))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, exhaustive(2), exhaustive(3), exhaustive(4)])
def test_a_history_has_the_versions_that_the_database_had(
    seed: int,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic = new_topic(3)
    database = Database(random.Random(seed), topic, keys=25)
    track = ("state", "big") if seed % 2 else ()
    spec = topic.spec(None, write="history", envelope="debezium", track=track)
    for number, step in enumerate((None, "table published")):
        database.work(100)
        if number:
            database.columns = (*database.columns, "more")
            database.work(40)
            database.snapshot()
        database.send(0.6)
        if step is not None:
            killed_at(spec, step)
            database.send(0.2)
        ingest(spec, connections(), f"run-{number}")
        columns = database.columns
        assert_versions(view(spec), database.changes, columns, track or columns, refused(view(spec)))
    database.send(1)
    ingest(spec, connections(), "run-rest")
    columns = database.columns
    assert_versions(view(spec), database.changes, columns, track or columns, refused(view(spec)))
    view(spec).assert_no_branches()
    # Read all at once, no change lacks the value that another one tells.
    replay(spec, connections(), "again", ReplayRange("earliest", "latest"))
    assert_versions(view(spec), database.changes, columns, track or columns)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, exhaustive(3)])
def test_partial_changes_of_a_source_make_history_versions(
    seed: int, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, chance = new_topic(3), random.Random(seed)
    changes: dict[int, list[Told]] = defaultdict(list)
    columns = ("at", "a", "b")
    spec = topic.spec("id int, at int, a string, b string", write="history", key=("id",),
                      order_by=("at",), delete_when="b = 'gone'", ignore_null_updates=("a", "b"),
                      track=("a", "b"))  # fmt: skip
    for number in range(2):
        for _ in range(150):
            key, partition = chance.randrange(12), chance.randrange(3)
            row = {"id": key, "at": chance.randrange(8), "a": chance.choice((None, "x", "y"))}
            row["b"] = chance.choice((None, "x", "y", "gone"))
            sent = topic.send(row, partition)
            is_delete = row["b"] == "gone"
            keeps = frozenset() if is_delete else frozenset(name for name in ("a", "b") if row[name] is None)
            change = Told((row["at"], *sent.place), row["at"], row, keeps, sent.place, is_delete)
            changes[key].append(change)
        topic.send({"id": 1, "b": "without an order"})
        topic.send({"at": 1, "b": "without a key"})
        ingest(spec, connections(), f"run-{number}")
        assert_versions(view(spec), changes, columns, ("a", "b"))
    assert len(view(spec).dead_letters()) == 4


NOON = datetime(2026, 1, 4, 12, tzinfo=UTC)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "values", "times", "end"),
    [
        (
            "date",
            [f"2026-01-{day:02}" for day in (1, 2, 3, 5)],
            [date(2026, 1, day) for day in (1, 2, 3, 5)],
            NOON.date(),
        ),
        (
            "timestamp",
            ["2026-01-01T05:30:00+05:30", "2026-01-01T00:00:00.5Z", "2026-01-02T00:00:00Z", "2026-01-05T00:00:00Z"],
            [BEGIN, BEGIN + timedelta(seconds=0.5), BEGIN + timedelta(days=1), BEGIN + timedelta(days=4)],
            NOON,
        ),
        exhaustive(
            "timestamp_ntz",
            [f"2026-01-0{day}T00:00:00.000001" for day in (1, 2, 3, 5)],
            [datetime(2026, 1, day, 0, 0, 0, 1) for day in (1, 2, 3, 5)],
            NOON.replace(tzinfo=None),
        ),
        exhaustive(
            "decimal(10,2)", [1.5, 1.75, 2, 10], [Decimal(price) for price in ("1.50", "1.75", "2.00", "10.00")], None
        ),
        exhaustive("double", [-1.5, 0, 1e-9, 10], [-1.5, 0, 1e-9, 10], None),
    ],
)
def test_an_interval_has_the_type_of_the_order(
    kind: str,
    values: list[Any],
    times: list[Any],
    end: Any,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
) -> None:
    """A tombstone, which has no order, ends a version at Kafka's time, where the order is one of times."""
    topic = new_topic(1)
    spec = topic.spec(f"id int, at {kind}, v string", write="history", key=("id",), order_by=("at",))
    for number, batch in enumerate((((0, "a"), (2, "c")), ((1, "b"), (None, None)), ((3, "d"),))):
        for which, value in batch:
            row = None if which is None else {"id": 1, "at": values[which], "v": value}
            topic.send(row, key=b'{"id": 1}', timestamp_ms=int(NOON.timestamp() * 1000))
        ingest(spec, connections(), f"run-{number}")
    found = [(version.begins, version.ends, version.row["v"]) for version in versions(view(spec), "id", ("v",))[1]]
    third = [(times[2], end, "c")] if end is not None else []
    assert found == [(times[0], times[1], "a"), (times[1], times[2], "b"), *third, (times[3], None, "d")]


@pytest.mark.exhaustive
def test_change_sent_twice_by_connector_changes_nothing(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """Not even for as long as only a part of it has come, which ends with a tombstone."""
    topic = new_topic(1)
    spec = topic.spec("id int, n int, big string", write="history", envelope="debezium")

    def change(op: str, lsn: int, row: dict[str, Any] | None = None) -> dict[str, Any]:
        source = {"connector": "postgresql", "lsn": lsn, "ts_ms": lsn * 1000}
        return {"before": None, "after": row and {"id": 1, **row}, "op": op, "source": source}

    first = [change("c", 10, {"n": 1, "big": "x"})]
    more = [change("d", 20), None, change("c", 30, {"n": 3, "big": "y"}), change("u", 40, {"n": 4, "big": UNSENT})]
    found = []
    for number, batch in enumerate((first + more, more[:2], more[2:], more)):
        for record in batch:
            topic.send(record, key=b'{"id": 1}')
        ingest(spec, connections(), f"run-{number}")
        found.append(
            [(version.begins, version.ends, version.row) for version in versions(view(spec), "id", ("n", "big"))[1]]
        )
    times = [datetime.fromtimestamp(seconds, UTC) for seconds in (10, 20, 30, 40)]
    assert found[0] == [
        (times[0], times[1], {"n": 1, "big": "x"}),
        (times[2], times[3], {"n": 3, "big": "y"}),
        (times[3], None, {"n": 4, "big": "y"}),
    ]
    assert found[1:] == found[:1] * 3
    assert view(spec).dead_letters() == []
