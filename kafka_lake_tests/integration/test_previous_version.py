"""Tables that the previous version wrote go on with the code as it is: every record once, value by value.

`previous_version` says what the archive holds. Each test is about a topic of its own.
"""

import sqlite3
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from kafka_lake.common.offsets import Position
from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.components.resources.kafka import KafkaResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.jobs.replay import Extent
from kafka_lake.ingest.published import examine
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.run import ingest, replay, replay_dead_letters
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import read_state, summary_of
from kafka_lake_tests.conftest import View
from kafka_lake_tests.integration.previous_version import (
    ARCHIVE,
    CATALOG,
    EVENTS,
    FOLDER,
    LETTERS,
    ORDERS,
    ROLLED_BACK,
    TORN,
    History,
    Place,
    broker,
    catalog_resource,
    folder,
    mended,
)

pytestmark = pytest.mark.integration

Rows = Mapping[Place, Mapping[str, Any]]
ErrorClasses = Mapping[Place, str]


@dataclass(frozen=True)
class Lake:
    """The unpacked archive: its broker runs, and Spark knows its catalog."""

    kafka: KafkaResource
    catalog: CatalogResource
    spark: SparkResource

    def connections(self) -> Connections:
        return Connections(
            self.kafka.cluster(), self.kafka.spark_options(), self.catalog.open(), lambda: self.spark.spark_session
        )

    def view(self, history: History) -> View:
        return View(self.catalog.open(), history.spec)

    def assert_holds(self, history: History, rows: Rows, dead_letters: ErrorClasses) -> None:
        """Assert that the topic's two tables hold these records and no others, each once, and as they were sent."""
        see = self.view(history)
        position = read_state(see.table).position
        assert position is not None
        records = history.records()

        def origin(place: Place) -> dict[str, Any]:
            record, timestamp = records[place]
            return {
                "topic": history.spec.topic,
                "topic_id": position.identity.topic_id,
                "partition": place[0],
                "offset": place[1],
                "timestamp": timestamp,
                "timestamp_type": "CreateTime",
                "key": record.key,
                "headers": [{"key": key, "value": value} for key, value in record.headers],
            }

        held = sorted(see.rows(), key=lambda row: (row["_kafka"]["partition"], row["_kafka"]["offset"]))
        assert held == [{**rows[place], "_kafka": origin(place)} for place in sorted(rows)]
        dead = sorted(see.dead_letters(), key=lambda letter: (letter["partition"], letter["offset"]))
        about_the_run = {"error_message", "run_id", "failed_at"}
        assert [{k: v for k, v in letter.items() if k not in about_the_run} for letter in dead] == [
            {**origin(place), "value": records[place][0].raw, "error_class": dead_letters[place]}
            for place in sorted(dead_letters)
        ]


@pytest.fixture(scope="module")
def lake(spark_resource: SparkResource) -> Iterator[Lake]:
    with folder():
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(FOLDER.parent, filter="data")
        # Spark keeps a catalog open by its name, and knows another one by the name in the archive.
        catalog = catalog_resource(f"previous_{uuid4().hex[:8]}")
        _rename_catalog(catalog.name)
        for key, value in catalog.open().spark_conf().items():
            if key.startswith("spark.sql.catalog."):
                spark_resource.spark_session.conf.set(key, value)
        with broker() as running:
            kafka = KafkaResource(properties={"bootstrap.servers": running.bootstrap_servers})
            yield Lake(kafka, catalog, spark_resource)


def _rename_catalog(name: str) -> None:
    with closing(sqlite3.connect(FOLDER / "catalog.db")) as database, database:
        for table in ("iceberg_tables", "iceberg_namespace_properties"):
            database.execute(f"UPDATE {table} SET catalog_name = ? WHERE catalog_name = ?", (name, CATALOG))


def positions(see: View) -> list[dict[int, int]]:
    """Return the positions that the table's snapshots carry, the oldest first."""
    summaries = [summary_of(snapshot) for snapshot in see.table.metadata.snapshots]
    return [
        dict(Position.from_json(summary["kafka-lake.position"]).offsets)
        for summary in summaries
        if "kafka-lake.position" in summary
    ]


def ranges(report: RunReport) -> list[tuple[int, int, int]]:
    return [(r.partition, r.start, r.end) for commit in report.commits for r in commit.ranges]


def failed_checks(lake: Lake, spec: TopicTable) -> dict[str, tuple[str, ...]]:
    connections = lake.connections()
    return {f.check: f.problems for f in examine(spec, connections.catalog, connections.cluster) if not f.passed}


def order(number: int, price: str | None = None, at: datetime | None = None, note: str | None = None) -> dict[str, Any]:
    return {"id": number, "price": None if price is None else Decimal(price), "at": at, "note": note}


def noted(number: int | None, note: str | None = None) -> dict[str, Any]:
    return {"id": number, "note": note}


@pytest.mark.exhaustive
def test_declared_columns_go_on_right_behind_the_position_and_are_replayed(lake: Lake) -> None:
    see = lake.view(ORDERS)
    rows = {
        (0, 0): order(1, "10.50", datetime(2025, 12, 1, 10, tzinfo=UTC), "first"),
        (0, 3): order(5, note="ünï 🍕"),
        (0, 4): order(7, at=datetime(2025, 12, 2, 18, 29, 59, 123456, tzinfo=UTC)),
        (1, 0): order(2, "0.01"),
        (1, 2): order(6, "9999999.99"),
    }
    dead_letters = {(0, 1): "not_json", (1, 1): "wrong_type", (1, 3): "wrong_type"}
    lake.assert_holds(ORDERS, rows, dead_letters)
    assert positions(see) == [{0: 4, 1: 2}, {0: 5, 1: 4}]
    head = see.table.current_snapshot()
    assert head is not None
    assert "kafka-lake.position" not in summary_of(head), "the compaction is the newest snapshot"

    report = ingest(ORDERS.spec, lake.connections(), "later")
    assert ranges(report) == [(0, 5, 7), (1, 4, 7)]
    rows |= {
        (0, 5): order(9, "1.00", note="later"),
        (0, 6): order(10),
        (1, 6): order(11, at=datetime(2025, 12, 3, tzinfo=UTC)),
    }
    dead_letters |= {(1, 4): "not_json"}
    lake.assert_holds(ORDERS, rows, dead_letters)
    assert see.position() == {0: 7, 1: 7}
    assert len(see.table.specs()) == 1, "the partitioning that is asked for is the one that the table has"
    assert not ingest(ORDERS.spec, lake.connections(), "nothing left").commits

    report = replay(ORDERS.spec, lake.connections(), "replay", Extent("0:1,1:0", "0:6,1:5"))
    assert ranges(report) == [(0, 1, 6), (1, 0, 5)]
    lake.assert_holds(ORDERS, rows, dead_letters)
    assert see.position() == {0: 7, 1: 7}
    assert failed_checks(lake, ORDERS.spec) == {}


def test_inferred_columns_go_on_evolving_and_skipped_offsets_stay_known(lake: Lake) -> None:
    see = lake.view(EVENTS)
    assert positions(see) == [{0: 1}, {0: 3}, {0: 5}]
    report = ingest(EVENTS.spec, lake.connections(), "later")
    assert ranges(report) == [(0, 5, 8)]

    def event(**values: Any) -> dict[str, Any]:
        # PyIceberg 0.12 reads a null list of structs as an empty one.
        nothing = {"id": None, "a_b": None, "s": None, "l": [], "added": None, "id__v2": None, "later": None}
        return nothing | values

    rows = {
        (0, 0): event(id=1, a_b="dotted", s={"x": 1, "y": None, "w": None}, l=[{"p": 1, "q": None}]),
        (0, 1): event(id=2, s={"x": 2, "y": {"z": "new"}, "w": None}, l=[{"p": 2, "q": True}], added=0.5),
        (0, 2): event(id__v2="three"),
        (0, 5): event(id__v2="six", a_b="again", s={"x": 6, "y": None, "w": "newer"}, later=6),
        (0, 7): event(id=8, l=[{"p": None, "q": False}], added=8.5),
    }
    lake.assert_holds(EVENTS, rows, {(0, 6): "not_json"})
    replay(EVENTS.spec, lake.connections(), "replay", Extent("0", "3"))
    lake.assert_holds(EVENTS, rows, {(0, 6): "not_json"})
    assert see.position() == {0: 8}
    assert failed_checks(lake, EVENTS.spec) == {"data_loss": ("partition 0 skipped offsets 3 to 4 by a reset",)}


def test_dead_letters_that_are_rows_by_now_are_reconciled_by_the_next_run(lake: Lake) -> None:
    required = "null_in_required_column"
    rows = {(0, 0): noted(0), (0, 1): noted(None, "one"), (0, 2): noted(None, "two")}
    dead_letters = {(0, 3): "not_json", (0, 4): required}
    lake.assert_holds(LETTERS, rows, {(0, 1): required, (0, 2): required, **dead_letters})

    ingest(LETTERS.spec, lake.connections(), "later")
    rows |= {(0, 5): noted(5)}
    lake.assert_holds(LETTERS, rows, {**dead_letters, (0, 6): required})
    lake.view(LETTERS).assert_no_branches()

    done = replay_dead_letters(mended(LETTERS), lake.connections(), "dead-letter replay")
    assert (done.moved, done.remaining) == (2, 1)
    rows |= {(0, 4): noted(None, "four"), (0, 6): noted(None, "six")}
    lake.assert_holds(LETTERS, rows, {(0, 3): "not_json"})
    assert lake.view(LETTERS).position() == {0: 7}


@pytest.mark.exhaustive
def test_dead_letters_that_a_rollback_took_the_rows_of_come_back(lake: Lake) -> None:
    lake.assert_holds(ROLLED_BACK, {(0, 0): noted(0)}, {(0, 2): "not_json"})
    ingest(replace(ROLLED_BACK.spec, sort_by=("id",)), lake.connections(), "later")
    rows = {(0, 0): noted(0), (0, 3): noted(3)}
    lake.assert_holds(ROLLED_BACK, rows, {(0, 1): "null_in_required_column", (0, 2): "not_json"})
    table = lake.view(ROLLED_BACK).table
    sorted_by = [table.schema().find_column_name(field.source_id) for field in table.sort_order().fields]
    assert sorted_by == ["id"], "a layout of ours follows the settings"


def test_a_run_that_died_between_its_publications_is_completed(lake: Lake) -> None:
    see = lake.view(TORN)
    lake.assert_holds(TORN, {(0, 0): noted(0)}, {(0, 2): "null_in_required_column", (0, 3): "not_json"})
    assert set(see.table.metadata.refs) != {"main"}
    report = ingest(mended(TORN), lake.connections(), "later")
    assert ranges(report) == [(0, 1, 6)]
    rows = {(0, 0): noted(0), (0, 1): noted(1), (0, 2): noted(None, "two"), (0, 4): noted(4)}
    lake.assert_holds(TORN, rows, {(0, 3): "not_json", (0, 5): "not_json"})
    see.assert_no_branches()
