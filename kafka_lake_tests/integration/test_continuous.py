"""A continuous run of a topic, on a real broker and a real Spark: exactly once, whatever comes in between."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka.admin import NewPartitions

from kafka_lake.catalog.positions import ancestors, head_of
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.formats.decoder import batch_metrics
from kafka_lake.ingest.continuous import ContinuousRun, Stop, feed_of
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.run import ingest
from kafka_lake.maintenance.policy import commits_since_compaction
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.runtime.commit import CheckFailedError
from kafka_lake.runtime.context import Connections, Context, Observer
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.decoding import SparkDecoding
from kafka_lake_tests.conftest import Topic, View

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

SETTINGS = Continuous(trigger=0.3, time_limit=600, idle=300, compact_every=None, report_every=1)


@dataclass
class Going:
    """A continuous run in a thread of its own."""

    run: ContinuousRun
    reports: list[RunReport] = field(default_factory=list)
    done: "Future[None] | None" = None

    def consume(self) -> None:
        for _, report in self.run.reports():
            self.reports.append(report)

    def rested(self) -> str | None:
        """Let it end as soon as it has looked in vain for a second: a busy machine must not make it end before."""
        self.run.settings = replace(self.run.settings, idle=1)
        return self.ended()

    def ended(self) -> str | None:
        assert self.done is not None
        self.done.result(120)
        return self.run.ended

    def total(self, attribute: str) -> int:
        return sum(report.total(attribute) for report in self.reports)


@contextmanager
def going(
    spec: TopicTable, connections: Connections, partitions: int = 1, settings: Continuous = SETTINGS, **hooks: Any
) -> Iterator[Going]:
    context = Context(spec, connections, f"steady-{spec.table}", Observer(**hooks), decoding=SparkDecoding())
    stop = Stop()
    made = Going(ContinuousRun([feed_of(context, stop, set(range(partitions)))], settings, stop))
    with ThreadPoolExecutor(1) as pool:
        made.done = pool.submit(made.consume)
        try:
            yield made
        finally:
            made.run.stop.requested = True


def eventually(condition: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it didn't come to that"
        time.sleep(0.05)


def test_continuous_run_reads_new_records_and_ends_when_idle(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec()
    topic.send_ids(range(4), 2)
    commits: list[int] = []
    with going(spec, connections(), 2, on_commit=lambda commit, _: commits.append(commit.snapshot)) as run:
        eventually(lambda: commits)
        for batch in range(1, 5):
            before = len(commits)
            topic.send_ids(range(4 * batch, 4 * batch + 4), 2)
            eventually(lambda: len(commits) > before)  # noqa: B023
        topic.send(b"junk")
        assert run.rested() == "no record arrived for 1 s"
    assert len(set(commits)) == len(commits) >= 5
    assert view(spec).ids() == list(range(20))
    view(spec).assert_exactly_once(topic.ledger)
    view(spec).assert_no_branches()
    assert (run.total("rows"), run.total("dead_letters")) == (20, 1)
    assert sum(len(report.commits) for report in run.reports) == len(commits)
    last = run.reports[-1]
    assert {p.partition: p.lag for p in last.partitions()} == {0: 0, 1: 0}
    for report in run.reports:
        assert all(finding.passed for finding in report.findings())


def test_a_run_over_an_idle_topic_touches_no_spark(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send_ids(range(2))
    spec = topic.spec()
    ingest(spec, connections(), "before")
    before = view(spec).fingerprint()

    def no_spark() -> Any:
        raise AssertionError("Spark was touched")

    with going(spec, replace(connections(), spark=no_spark), settings=replace(SETTINGS, idle=0.5)) as run:
        assert run.ended() == "no record arrived for 0.5 s"
    assert view(spec).fingerprint() == before


def test_a_wish_to_stop_leaves_whole_commits_and_nothing_else(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send_ids(range(3))
    spec = topic.spec()
    staged = threading.Event()

    def step_done(step: str) -> None:
        if step == "table staged":
            staged.set()

    with going(spec, connections(), step_done=step_done) as run:
        assert staged.wait(120)
        run.run.stop.requested = True
        assert run.ended() == "it was stopped"
    view(spec).assert_exactly_once(topic.ledger)
    view(spec).assert_no_branches()
    topic.send_ids(range(3, 5))
    ingest(spec, connections(), "after")
    view(spec).assert_exactly_once(topic.ledger)


def test_an_interrupt_in_the_middle_of_a_commit_discards_it(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids(range(3))
    ingest(spec, connections(), "before")
    topic.send_ids(range(3, 5))
    before = view(spec).fingerprint()

    def interrupt(step: str) -> None:
        if step == "audited":
            raise KeyboardInterrupt

    context = Context(spec, connections(), "interrupted", Observer(step_done=interrupt), decoding=SparkDecoding())
    stop = Stop()
    run = ContinuousRun([feed_of(context, stop, {0})], SETTINGS, stop)
    with pytest.raises(KeyboardInterrupt):
        list(run.reports())
    assert view(spec).fingerprint() == before


@pytest.mark.exhaustive
def test_small_files_are_compacted_in_between(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    spec = topic.spec(sort_by=("id desc",))
    commits: list[int] = []
    steps: list[str] = []
    settings = replace(SETTINGS, compact_every=5)
    hooks = {"on_commit": lambda commit, _: commits.append(commit.files), "step_done": steps.append}
    with going(spec, connections(), settings=settings, **hooks) as run:
        for number in range(7):
            topic.send_ids([number])
            eventually(lambda: len(commits) > number)  # noqa: B023
        assert run.rested() == "no record arrived for 1 s"
    assert "5 files compacted to 1" in steps
    see = view(spec)
    assert see.ids() == list(range(7))
    see.assert_exactly_once(topic.ledger)
    assert len(list(see.table.scan().plan_files())) == 3
    operations = [s.summary.operation.value for s in ancestors(see.table, head_of(see.table)) if s.summary]
    assert operations.count("replace") == 1
    assert commits_since_compaction(see.table) == 2


def test_new_partition_ends_continuous_run_after_its_records(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids(range(3))
    commits: list[int] = []
    with going(spec, connections(), on_commit=lambda commit, _: commits.append(commit.rows)) as run:
        eventually(lambda: commits)
        topic.admin.create_partitions([NewPartitions(topic.name, 2)])[topic.name].result(20)
        eventually(lambda: topic.partitions() == 2)
        topic.send({"id": 3}, partition=0)
        topic.send({"id": 4}, partition=1)
        assert "partitions that are not this run's: 1" in str(run.ended())
    ingest(spec, connections(), "over all")
    view(spec).assert_exactly_once(topic.ledger)


def test_continuous_run_of_some_partitions_reads_only_those(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(max_records_per_commit=2)
    topic.send_ids(range(10), 2)
    with going(spec, connections(), 1) as run:
        assert "not this run's: 1" in str(run.ended())
    assert view(spec).ids() == [0, 2, 4, 6, 8]
    assert len(run.reports) == 1
    assert len(run.reports[0].commits) == 3


@pytest.mark.exhaustive
def test_another_run_in_between_is_no_harm(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids(range(3))
    commits: list[int] = []
    other = connections()
    raced: list[int] = []

    def step_done(step: str) -> None:
        # A normal run publishes what this one has just audited.
        if step == "audited" and len(commits) == 1 and not raced:
            raced.append(len(ingest(spec, other, "racing").commits))

    with going(spec, connections(), on_commit=lambda commit, _: commits.append(1), step_done=step_done) as run:
        eventually(lambda: commits)
        topic.send_ids(range(3, 6))
        eventually(lambda: raced)
        topic.send_ids(range(6, 9))
        assert run.rested() == "no record arrived for 1 s"
    assert raced == [1]
    assert view(spec).ids() == list(range(9))
    view(spec).assert_exactly_once(topic.ledger)
    view(spec).assert_no_branches()


@pytest.mark.exhaustive
def test_rolled_back_table_is_refilled_while_topic_is_idle(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    spark_resource: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafka_lake.ingest.continuous.TABLE_POLL_SECONDS", 0.5)
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids(range(2))
    ingest(spec, connections(), "first")
    first = head_of(view(spec).table)
    topic.send_ids(range(2, 4))
    commits: list[int] = []
    with going(spec, connections(), on_commit=lambda commit, _: commits.append(commit.rows)) as run:
        eventually(lambda: commits == [2])
        spark_resource.spark_session.sql(view(spec).call("rollback_to_snapshot", snapshot_id=f"{first}")).collect()
        eventually(lambda: commits == [2, 2])
        assert run.rested() == "no record arrived for 1 s"
    view(spec).assert_exactly_once(topic.ledger)


def test_a_refused_commit_fails_the_run_and_those_before_it_stay(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec(max_dead_letters=1)
    topic.send_ids(range(2))
    commits: list[int] = []
    with going(spec, connections(), on_commit=lambda commit, _: commits.append(1)) as run:
        eventually(lambda: commits)
        topic.send(b"junk")
        eventually(lambda: len(commits) == 2)
        topic.send(b"more junk")
        with pytest.raises(CheckFailedError, match="2 dead letters of 4 records"):
            run.ended()
    assert view(spec).ids() == [0, 1]
    assert len(view(spec).dead_letters()) == 1
    view(spec).assert_no_branches()


def test_records_without_a_time_do_not_count(spark_resource: Any) -> None:
    frame = spark_resource.spark_session.sql(
        "SELECT timestamp_millis(ms) AS timestamp, X'00' AS value, CAST(NULL AS string) AS error_class, "
        "CAST(NULL AS string) AS observed, "
        "CAST(NULL AS binary) AS key, CAST(NULL AS array<struct<key: string, value: binary>>) AS headers "
        "FROM VALUES (-1L), (1700000000123L), (1800000000456L) AS given(ms)"
    )
    (found,) = frame.agg(*batch_metrics()).collect()
    assert (found["oldest_ms"], found["newest_ms"]) == (1_700_000_000_123, 1_800_000_000_456)
    assert found["bytes_read"] == 3
    (none,) = frame.filter("timestamp < timestamp_millis(0)").agg(*batch_metrics()).collect()
    assert (none["oldest_ms"], none["newest_ms"]) == (None, None)


_RUN = """
import sys
import dagster as dg
from kafka_lake.orchestration.assets import Presentation, build_topic_assets
from kafka_lake.orchestration.keys import table_key
from kafka_lake.orchestration.partitions import partitions_of
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.topic_table import TopicTable

topic, table, brokers, uri, warehouse, folder = sys.argv[1:]
catalog = CatalogResource(name="lake", properties={"type": "sql", "uri": uri, "warehouse": warehouse})
conf = {
    "spark.master": "local[2]",
    "spark.driver.memory": "600m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
spec = TopicTable(topic, "it", table, schema="id bigint")
with dg.DagsterInstance.local_temp(folder) as instance:
    instance.add_dynamic_partitions(partitions_of(topic).name, ["0"])
    result = dg.materialize(
        build_topic_assets(spec, Presentation("tests"), Continuous(trigger=0.3, compact_every=None)),
        instance=instance,
        resources={
            "kafka": KafkaResource(properties={"bootstrap.servers": brokers}),
            "catalog": catalog,
            "registry": RegistryResource(),
            "spark": SparkResource(spark_config=conf, catalog=catalog),
        },
        selection=dg.AssetSelection.assets(table_key(spec)),
        tags={"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "0"},
        raise_on_error=False,
    )
"""


@pytest.mark.exhaustive
def test_dagster_terminate_ends_run_without_leftovers(
    new_topic: NewTopic, view: NewView, broker: EmbeddedBroker, catalog_resource: CatalogResource, tmp_path: Path
) -> None:
    topic = new_topic()
    topic.send_ids([0])
    see = view(topic.spec())
    where = (catalog_resource.properties["uri"], catalog_resource.properties["warehouse"], str(tmp_path))
    command = [sys.executable, "-c", _RUN, topic.name, topic.table, broker.bootstrap_servers, *where]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        number = 0
        while number < 2:
            eventually(lambda: see.catalog.table(see.spec.identifier) and see.ids() == list(range(number + 1)))  # noqa: B023
            number += 1
            topic.send_ids([number])
        with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
            # As the run launcher's terminate does it, and at a moment when there is something to commit.
            (run,) = instance.get_runs()
            instance.report_run_canceling(run)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
            assert [item.status for item in instance.get_runs()] == [dg.DagsterRunStatus.CANCELED], said
    finally:
        process.kill()
    assert "The run ends: it was stopped." in said
    see.assert_no_branches()
    assert see.ids() == list(range(len(see.ids())))
    assert len(see.ids()) >= 2
