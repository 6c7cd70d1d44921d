"""Metrics: what is known becomes samples, what isn't known any more vanishes, and nobody waits for who hangs."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import URLError

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from kafka_lake.catalog.tables import Totals
from kafka_lake.cli.main import app
from kafka_lake.common.offsets import Loss, Position, TopicIdentity, Watermarks
from kafka_lake.common.processes import free_port
from kafka_lake.errors import CatalogError, ConfigurationError, KafkaError
from kafka_lake.kafka.records import RecordReference
from kafka_lake.maintenance.policy import TableHealth
from kafka_lake.observability import collect
from kafka_lake.observability import metrics as m
from kafka_lake.observability.collect import ClusterCollector, Workers
from kafka_lake.observability.metrics import MAX_PARTITIONS, METRICS, Metric
from kafka_lake.observability.samples import (
    Sample,
    TableFacts,
    TopicTables,
    broker_samples,
    key_of,
    lag_samples,
    table_samples,
    unread_samples,
)
from kafka_lake.observability.serve import PARTS, Exposed, LatestSamples, start_server
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.scraped import Scraped, scrape, served

ROOT = Path(__file__).parents[3]
KEY = ("eu/orders", "shop.orders")
ME = TopicIdentity("c", "t", "orders")
HEALTH = TableHealth(rows=100, data_files=4, size=4000, delete_files=1, deleted_rows=25, commits=3, snapshots=7)


def now_of(ends: Mapping[int, int], low: int = 0) -> Watermarks:
    return Watermarks(ME, dict.fromkeys(ends, low), dict(ends))


def values(samples: Iterator[Sample], metric: Metric, at: float = 1000.0) -> dict[tuple[str, ...], float]:
    """Return the samples of a metric by the labels that follow topic and table."""
    found = [sample for sample in samples if sample.metric is metric]
    assert all(sample.labels[:2] == KEY for sample in found)
    assert len({sample.labels for sample in found}) == len(found)
    return {sample.labels[2:]: sample.at(at) for sample in found}


@pytest.mark.parametrize("metric", METRICS, ids=lambda value: value.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    """https://prometheus.io/docs/practices/naming/."""
    assert re.fullmatch("[a-z][a-z0-9_]*", metric.name)
    assert metric.name.startswith("kafka_lake_")
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not metric.name.endswith(("_count", "_sum", "_bucket", "_info", "_ms", "_minutes", "_kb"))
    assert metric.labels[:2] in ((), ("topic", "table"))
    assert metric.help.endswith(".")
    assert [item.name for item in METRICS].count(metric.name) == 1


def test_what_the_brokers_tell_is_by_partition() -> None:
    now, position = now_of({0: 9, 1: 4}, low=2), Position(ME, {0: 5})
    assert values(broker_samples(KEY, now), m.LOG_END) == {("0",): 9, ("1",): 4}
    assert values(broker_samples(KEY, now), m.LOG_START) == {("0",): 2, ("1",): 2}
    assert values(broker_samples(KEY, now), m.PARTITIONS) == {(): 2}
    assert values(lag_samples(KEY, now, position), m.POSITION) == {("0",): 5}
    assert values(lag_samples(KEY, now, position), m.LAG) == {("0",): 4, ("1",): 2}
    assert values(lag_samples(KEY, now, None), m.LAG) == {("0",): 7, ("1",): 2}


def test_the_position_in_an_older_topic_of_the_same_name_does_not_count() -> None:
    older = Position(TopicIdentity("c", "before", "orders"), {0: 900})
    assert values(lag_samples(KEY, now_of({0: 9}), older), m.LAG) == {("0",): 9}
    assert values(lag_samples(KEY, now_of({0: 9}), older), m.POSITION) == {}


def test_a_topic_of_very_many_partitions_is_told_of_as_a_whole() -> None:
    few, many = (dict.fromkeys(range(MAX_PARTITIONS + more), 10) for more in (0, 1))
    assert len(values(broker_samples(KEY, now_of(few)), m.LOG_END)) == MAX_PARTITIONS
    assert values(broker_samples(KEY, now_of(many)), m.LOG_END) == {("",): 10 * len(many)}
    position = Position(ME, dict.fromkeys(many, 9))
    assert values(lag_samples(KEY, now_of(many), position), m.LAG) == {("",): len(many)}
    assert values(lag_samples(KEY, now_of(many), position), m.POSITION) == {("",): 9 * len(many)}
    lags = dict.fromkeys(many, 1)
    oldest: dict[int, float | None] = {p: 400.0 + p for p in many}
    assert values(unread_samples(KEY, lags, oldest), m.LAG_SECONDS) == {("",): 600}
    del oldest[7]
    assert values(unread_samples(KEY, lags, oldest), m.LAG_SECONDS) == {}
    assert values(unread_samples(KEY, dict.fromkeys(many, 0), {}), m.LAG_SECONDS) == {("",): 0}


def test_the_age_of_the_oldest_unread_record_grows_and_is_0_where_nothing_waits() -> None:
    lags = {0: 5, 1: 0, 2: 3, 3: 9, 4: 1}
    samples = list(unread_samples(KEY, lags, {0: 990.0, 2: None, 4: 5000.0}))
    # Of partition 3 it isn't known; 2 has only offsets without records; the record of 4 is from the future.
    assert values(iter(samples), m.LAG_SECONDS, at=1000) == {("0",): 10, ("1",): 0, ("2",): 0, ("4",): 0}
    assert values(iter(samples), m.LAG_SECONDS, at=1600)["0",] == 610


def tables(**more: Any) -> TopicTables:
    facts = (TableFacts("shop.orders", HEALTH, True, 990.0, None), TableFacts("shop.letters", HEALTH, False, None, 5.0))
    return TopicTables(
        **{
            "position": None,
            "committed_at": 900.0,
            "dead_letters": 3,
            "totals": None,
            "losses": (),
            "tables": facts,
            **more,
        }
    )


def test_what_the_tables_tell() -> None:
    samples = list(table_samples(KEY, tables()))
    of_table = {
        (sample.metric, sample.labels[1]): sample.value
        for sample in samples
        if sample.metric.name.startswith("kafka_lake_table_")
    }
    assert of_table[m.TABLE_ROWS, "shop.orders"] == 100
    assert of_table[m.TABLE_DELETED_SHARE, "shop.letters"] == 0.25
    assert of_table[m.TABLE_FILE_BYTES, "shop.orders"] == 800
    assert (of_table[m.TABLE_OVERDUE, "shop.orders"], of_table[m.TABLE_OVERDUE, "shop.letters"]) == (1, 0)
    assert of_table[m.TABLE_TIME, "shop.orders"] == 990
    assert (m.TABLE_TIME, "shop.letters") not in of_table
    assert (m.TABLE_COMPACTED, "shop.orders") not in of_table
    assert of_table[m.TABLE_COMPACTED, "shop.letters"] == 5
    ours = iter(sample for sample in samples if sample.labels[1] == KEY[1])
    assert values(ours, m.WAITING) == {(): 3}
    assert m.LAST_COMMIT not in {sample.metric for sample in table_samples(KEY, tables(committed_at=None))}


def test_counters_are_there_before_the_first_commit() -> None:
    nothing = values(table_samples(KEY, tables(tables=())), m.DEAD_LETTERS)
    assert nothing == {(): 0}
    done = tables(tables=(), totals=Totals(dead_letters=2, seconds={"stage": 1.5}))
    assert values(table_samples(KEY, done), m.DEAD_LETTERS) == {(): 2}
    assert values(table_samples(KEY, done), m.STEP_SECONDS) == {("plan",): 0, ("stage",): 1.5, ("audit",): 0}


def test_losses_are_counted_and_added_up_where_it_is_known_how_many_records() -> None:
    losses = (
        Loss(0, 5, 9, "retention"),
        Loss(1, 0, 2, "retention"),
        Loss(0, 3, 700, "truncated"),
        Loss(2, 8, None, "partition gone"),
    )
    samples = list(table_samples(KEY, tables(tables=(), losses=losses)))
    assert values(iter(samples), m.LOST) == {("retention",): 6, ("skipped",): 0}
    assert values(iter(samples), m.LOSSES) == {
        ("retention",): 2,
        ("truncated",): 1,
        ("replaced",): 0,
        ("partition gone",): 1,
        ("topic recreated",): 0,
        ("skipped",): 0,
    }


def of(latest: LatestSamples, now: float, clusters: int = 1) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(sample.metric.name, sample.labels): sample.at(now) for sample in latest.samples(now, clusters)}


def test_values_vanish_when_their_part_fails_or_grows_old_and_come_back() -> None:
    latest, other = LatestSamples([KEY, ("clicks", "web.clicks")], max_age=60), ("clicks", "web.clicks")
    success = m.SCRAPE_SUCCESS.name
    shown = of(latest, 0)
    assert {value for (name, _), value in shown.items() if name == success} == {0}
    assert len([1 for name, _ in shown if name == success]) == 2 * len(PARTS)
    sample = Sample(m.WAITING, KEY, 7)
    latest.succeeded(KEY, "table", [sample], now=100)
    latest.succeeded(other, "table", [Sample(m.WAITING, other, 8)], now=100)
    assert of(latest, 160)[m.WAITING.name, KEY] == 7
    assert of(latest, 160)[success, (*KEY, "table")] == 1
    assert (m.WAITING.name, KEY) not in of(latest, 161), "an old value is dropped"
    assert of(latest, 161)[success, (*KEY, "table")] == 0
    assert latest.failed(KEY, "table", "no answer"), "the first time it is new"
    assert not latest.failed(KEY, "table", "no answer")
    assert latest.failed(KEY, "table", "another reason")
    after = of(latest, 110)
    assert (m.WAITING.name, KEY) not in after
    assert after[success, (*KEY, "table")] == 0
    assert after[m.SCRAPE_TIME.name, (*KEY, "table")] == 100
    assert after[m.WAITING.name, other] == 8, "no other topic is concerned"
    latest.succeeded(KEY, "table", [sample], now=120)
    assert of(latest, 121)[m.WAITING.name, KEY] == 7
    assert latest.failed(KEY, "table", "another reason"), "it had passed meanwhile"


def test_the_time_of_the_collection_is_that_of_the_slowest_cluster() -> None:
    latest = LatestSamples([], max_age=60)
    latest.collected("eu", 100, 5)
    assert (m.COLLECTION_TIME.name, ()) not in of(latest, 100, clusters=2)
    latest.collected("us", 90, 7)
    assert of(latest, 100, clusters=2)[m.COLLECTION_TIME.name, ()] == 90
    assert of(latest, 100, clusters=2)[m.COLLECTION_SECONDS.name, ()] == 7


def test_nobody_waits_for_a_job_that_hangs_nor_begins_it_twice() -> None:
    workers, release, begun, done = Workers(2), Event(), [], []

    def hang() -> None:
        begun.append(1)
        release.wait(30)

    began = time.monotonic()
    assert workers.run({"hangs": hang, "works": lambda: done.append(1)}, 0.3) == {"hangs"}
    assert workers.run({"hangs": hang, "works": lambda: done.append(2)}, 0.3) == {"hangs"}
    assert time.monotonic() - began < 5
    assert (begun, done) == ([1], [1, 2])
    release.set()
    assert workers.run({"hangs": hang}, 10) == set()


def test_many_jobs_may_take_longer_than_one_that_hangs() -> None:
    workers, done = Workers(1), []
    slow = {number: lambda number=number: (time.sleep(0.1), done.append(number)) for number in range(8)}  # type: ignore[misc]
    assert workers.run(slow, 0.5) == set()
    assert len(done) == 8


def test_an_error_of_a_job_costs_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    workers, done = Workers(1), []

    def fail() -> None:
        raise ValueError("a defect")

    assert workers.run({"fails": fail, "works": lambda: done.append(1)}, 10) == set()
    assert done == [1]
    assert "A job of the metrics failed: fails" in caplog.text


class Cluster:
    """Brokers that say what they are told to say."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers, self.error = answers, None

    def watermarks(self, topics: Iterator[str]) -> Mapping[str, Any]:
        if self.error:
            raise self.error
        return {name: self.answers[name] for name in topics}


class Asked:
    """What is asked of whom, and what they answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *topics: str) -> None:
        self.specs = [TopicTable(name, "shop", name) for name in topics]
        self.cluster = Cluster({name: Watermarks(TopicIdentity("c", "t", name), {0: 0}, {0: 5}) for name in topics})
        self.tables: dict[str, Any] = {name: self.found(name, 5) for name in topics}
        self.came: dict[str, float | None] = dict.fromkeys(topics, 100.0)
        self.asked: list[str] = []
        self.reported: list[str] = []
        self.latest = LatestSamples(map(key_of, self.specs), max_age=60)
        self.collector = ClusterCollector(
            specs=self.specs,
            cluster=lambda: self.cluster,  # type: ignore[arg-type, return-value]
            catalog=lambda: None,  # type: ignore[arg-type, return-value]
            latest=self.latest,
            tell_user=self.reported.append,
        )
        monkeypatch.setattr(collect, "topic_tables", self._tables)
        monkeypatch.setattr(collect, "arrival_times", self._times)
        monkeypatch.setattr(collect, "TABLE_SECONDS", 0.4)

    def found(self, name: str, offset: int) -> TopicTables:
        return tables(tables=(), position=Position(TopicIdentity("c", "t", name), {0: offset}))

    def _tables(self, spec: TopicTable, _: Any) -> TopicTables:
        answer = self.tables[spec.topic]
        if isinstance(answer, Event):
            answer.wait(30)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, TopicTables)
        return answer

    def _times(self, _: Any, places: set[RecordReference], __: float) -> dict[RecordReference, float | None]:
        self.asked += [place.topic for place in places]
        return {place: self.came[place.topic] for place in places if place.topic in self.came}

    def collected(self) -> dict[tuple[str, tuple[str, ...]], float]:
        self.collector.collect()
        return of(self.latest, time.time())

    def parts(self, topic: str) -> list[float]:
        found = of(self.latest, time.time())
        return [found[m.SCRAPE_SUCCESS.name, (topic, f"shop.{topic}", part)] for part in PARTS]


def test_a_table_that_hangs_costs_no_other_topic_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, "orders", "clicks")
    release = asked.tables["orders"] = Event()
    shown = asked.collected()
    assert asked.parts("orders") == [1, 0, 0]
    assert asked.parts("clicks") == [1, 1, 1]
    lag = m.LAG.name
    assert (lag, ("orders", "shop.orders", "0")) not in shown, "without the table nobody knows"
    assert shown[m.LOG_END.name, ("orders", "shop.orders", "0")] == 5
    assert shown[lag, ("clicks", "shop.clicks", "0")] == 0
    (reported,) = asked.reported
    assert reported.startswith("orders, table: ")
    release.set()


def test_brokers_that_do_not_answer_take_ends_and_lag_away_and_are_told_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch, "orders", "clicks")
    asked.collected()
    asked.cluster.error = KafkaError("The brokers are away.", "Start them.")  # type: ignore[assignment]
    for _ in range(3):
        shown = asked.collected()
    for topic in ("orders", "clicks"):
        assert asked.parts(topic) == [0, 0, 1]
        assert not any(name in shown for name in [(m.LAG.name, (topic, f"shop.{topic}", "0"))])
        assert shown[m.WAITING.name, (topic, f"shop.{topic}")] == 3
    assert asked.reported == [f"{topic}, brokers: The brokers are away. Start them." for topic in ("orders", "clicks")]
    asked.cluster.error = None
    asked.collected()
    assert asked.parts("orders") == [1, 1, 1]


def test_errors_concern_the_topic_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, "orders", "clicks", "views")
    asked.cluster.answers = {**asked.cluster.answers, "orders": KafkaError("No such topic.")}
    asked.tables["clicks"] = CatalogError("No table.")
    asked.tables["views"] = asked.found("views", 2)
    del asked.came["views"]
    asked.collected()
    assert [asked.parts(topic) for topic in ("orders", "clicks", "views")] == [[0, 0, 1], [1, 0, 0], [1, 0, 1]]
    assert sorted(line.partition(":")[0] for line in asked.reported) == [
        "clicks, table",
        "orders, brokers",
        "views, unread",
    ]


def test_the_oldest_unread_record_is_asked_for_again_only_when_the_position_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch, "orders")
    label = (m.LAG_SECONDS.name, ("orders", "shop.orders", "0"))
    assert asked.collected()[label] == 0
    assert asked.asked == [], "nothing is unread"
    asked.tables["orders"] = asked.found("orders", 2)
    ages = [asked.collected()[label] for _ in range(3)]
    assert asked.asked == ["orders"]
    assert ages == [pytest.approx(time.time() - 100, abs=5)] * 3
    asked.tables["orders"] = asked.found("orders", 3)
    asked.came["orders"] = None
    assert asked.collected()[label] == 0, "offsets without records wait for nothing"
    asked.came["orders"] = 200.0
    assert asked.collected()[label] > 0, "by now there is one"
    assert asked.asked == ["orders"] * 3
    assert len(asked.collector._known) == 1, "what has been read is forgotten"


@given(st.text(), st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_whatever_a_topic_is_called_it_is_exposed(topic: str, table: str, value: float) -> None:
    # Sent as UTF-8, which has no lone surrogates; a label can't have them.
    topic, table = (text.encode(errors="replace").decode() for text in (topic, table))
    registry = CollectorRegistry()
    registry.register(Exposed(lambda _: iter([Sample(m.WAITING, (topic, table), value)])))
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    (sample,) = family.samples
    assert (sample.name, sample.value) == (m.WAITING.name, value)
    if not set(topic + table) & set("\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
        assert sample.labels == {"topic": topic, "table": table}


@pytest.mark.processes
def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with served(lambda _: iter(())) as address:
        port = int(address.split(":")[2].partition("/")[0])
        with pytest.raises(ConfigurationError, match="Address already in use"):
            start_server(lambda _: iter(()), "127.0.0.1", port)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGTERM, exhaustive(signal.SIGINT)])
def test_without_brokers_the_process_says_so_shows_no_secret_and_ends_at_once(
    tmp_path: Path, by: signal.Signals
) -> None:
    port = free_port()
    environment = {
        "KAFKA_LAKE_HOME": str(tmp_path),
        "KAFKA_LAKE_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
        "KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KAFKA_LAKE_KAFKA_SASL_MECHANISM": "PLAIN",
        "KAFKA_LAKE_KAFKA_SASL_USERNAME": "reader",
        "KAFKA_LAKE_KAFKA_SASL_PASSWORD": "hunter2-secret",
    }
    command = [sys.executable, "-c", "from kafka_lake.cli.main import main; main()", "metrics", "serve"]
    command += ["--port", str(port), "--interval", "1s"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **environment}
    ) as process:
        try:
            shown = _scraped(port)
            again = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["metrics", "serve", "--port", str(port)])
            process.send_signal(by)
            began = time.monotonic()
            assert process.wait(30) == 0
            assert time.monotonic() - began < 10
            assert process.stderr is not None
            said = process.stderr.read()
        finally:
            process.kill()
    success = {labels["part"]: value for labels, value in shown.all("scrape_success")}
    assert success == {"brokers": 0, "unread": 0, "table": 1}
    assert "completed-pizzas, brokers: " in said
    assert said.splitlines()[-1] == "Stopping…"
    assert "hunter2" not in said
    assert "hunter2" not in str(shown.values)
    assert again.exit_code == 1
    assert f"port {port}: Address already in use" in again.output
    assert "choose another with --port" in again.output


def _scraped(port: int) -> Scraped:
    """Return the metrics once all that can be known is."""
    deadline = time.monotonic() + 90
    while True:
        try:
            found = scrape(f"http://127.0.0.1:{port}/metrics")
            if found.all("collection_last_success_timestamp_seconds"):
                return found
        except (TimeoutError, URLError):
            pass
        assert time.monotonic() < deadline, "no metrics"
        time.sleep(0.2)
