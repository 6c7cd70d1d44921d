"""A run over the topics of one table, one after the other; each commit is of one topic."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from kafka_lake.common.errors import ConfigurationError, UnknownTopicError
from kafka_lake.common.offsets import lag
from kafka_lake.components.keys import TOPIC_TAG, partition_key, partitions_in
from kafka_lake.components.reporting import Reporter
from kafka_lake.ingest.causes import headline, is_transient
from kafka_lake.ingest.commit import Commit
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.finding import Finding
from kafka_lake.ingest.gate import GateFailedError
from kafka_lake.ingest.jobs.replay import Extent
from kafka_lake.ingest.observer import Observer
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.plan.start import is_time
from kafka_lake.ingest.published import examine, examine_offsets
from kafka_lake.ingest.report import PartitionReport, RunReport, merged
from kafka_lake.ingest.run import ingest, replay
from kafka_lake.ingest.topic_table import TopicTable


@dataclass(frozen=True)
class Task:
    """What a run does with each topic.

    Args:
        replay: Read this part of it again; None to go on where the table ends.
    """

    replay: Extent | None


@dataclass
class TopicsReporter(Reporter):
    """Tells Dagster of a run over the topics of one table: figures by topic and partition, the rest of all together.

    Args:
        reports: What was done, by topic.
    """

    reports: dict[str, RunReport] = field(init=False, default_factory=dict)

    @property
    def topics(self) -> list[tuple[TopicTable, frozenset[int] | None]]:
        """Return the topics that the run is for, each with its partitions; None for all that it has."""
        if self.keys is None:
            return [(each, None) for each in self.spec.each_topic]
        chosen = [(each, partitions_in(each, self.keys)) for each in self.spec.each_topic]
        return [(each, partitions) for each, partitions in chosen if partitions]

    def whole(self) -> RunReport:
        """Return what was done to the table by all topics; offsets and partitions in it are those of the first."""
        reports = list(self.reports.values())
        commits = [_of_topic(commit, topic) for topic, its in self.reports.items() for commit in its.commits]
        return replace(reports[0], commits=commits, seconds=sum(each.seconds for each in reports))

    def _touched(self, report: RunReport, silent: set[int]) -> set[str]:
        return set(self._by_key(report))

    def _by_key(self, report: RunReport) -> dict[str, PartitionReport]:
        return {
            partition_key(each, its.partition): its
            for each in self.spec.each_topic
            if each.topic in self.reports
            for its in self.reports[each.topic].partitions()
        }

    def _tell_of_topic(self, report: RunReport, patiently: bool) -> None:
        for each in self.spec.each_topic:
            if each.topic in self.reports:
                teller = Reporter(self.context, each, self.connections)
                teller._tell_of_topic(self.reports[each.topic], patiently)

    def _whole(self, report: RunReport, table: Any) -> dict[str, Any]:
        told = super()._whole(report, table)
        lags = {topic: sum(lag(its.position, its.watermarks).values()) for topic, its in self.reports.items()}
        figures = {"lag": sum(lags.values()), **{f"lag_of_{topic}": each for topic, each in lags.items()}}
        return {**told, **figures}


def materialize_topics(
    context: dg.AssetExecutionContext, task: Task, spec: TopicTable, connections: Connections
) -> Iterator[Any]:
    """Bring a table up to where each of its topics ends now, and give what Dagster shows of that.

    A topic that fails doesn't keep the others from being read; the run fails by it in the end. A run that the sensor
    has asked for tells of a topic that the brokers don't know, and goes on.

    Args:
        context: Of the run.
        task: What to do.
        spec: The table.
        connections: Cluster, catalog and Spark.

    Raises:
        ConfigurationError: If no topic of the table is chosen, or offsets are meant for several topics.
        KafkaLakeError: The first error of a topic; its commits and those of the others stay.
    """
    reporter = TopicsReporter(context, spec, connections)
    _refuse(task, spec, [each for each, _ in reporter.topics])
    failed: Exception | None = None
    gone: UnknownTopicError | None = None
    for each, partitions in reporter.topics:
        try:
            reporter.reports[each.topic] = _one(reporter, task, each, partitions)
        except Exception as error:
            if isinstance(error, UnknownTopicError) and TOPIC_TAG in context.run.tags:
                # The sensor asks for none that the brokers don't know. Its partitions are in between, for Dagster's
                # ranges have no gaps; and runs that fail would keep the others waiting.
                context.log.warning(
                    f"Topic {each.topic} is left out: {headline(error)} If it has been deleted, `kafka-lake topics "
                    "refresh` takes it out of a table whose topics: is a pattern; else take it out of topics:."
                )
                gone = error
                continue
            context.log.error(f"Topic {each.topic}: {headline(error)}")
            failed = failed or error
            if is_transient(error):
                # The others would wait for the same.
                break
    if not reporter.reports:
        failed = failed or gone
    if failed is None:
        yield from reporter.end(reporter.whole())
        return
    if any(each.commits for each in reporter.reports.values()):
        yield from reporter.interval(reporter.whole(), set())
    if isinstance(failed, GateFailedError):
        yield from reporter.refused(failed)
    raise failed


def _one(reporter: TopicsReporter, task: Task, spec: TopicTable, partitions: frozenset[int] | None) -> RunReport:
    context = reporter.context

    def tell(commit: Commit, plan: Plan) -> None:
        context.log.info(
            f"Snapshot {commit.snapshot}, topic {spec.topic}: {commit.rows} rows, {commit.dead_letters} dead letters, "
            f"{commit.tombstones} tombstones from {commit.records} records; "
            f"{reporter.committed(plan) or f'{plan.remaining} offsets to go'}."
        )

    observer = Observer(step_done=context.log.debug, on_commit=tell, warn=context.log.warning)
    if task.replay is not None:
        extent = replace(task.replay, partitions=partitions)
        return replay(spec, reporter.connections, run_id=context.run_id, extent=extent, observer=observer)
    return ingest(spec, reporter.connections, run_id=context.run_id, partitions=partitions, observer=observer)


def _refuse(task: Task, spec: TopicTable, chosen: Sequence[TopicTable]) -> None:
    table = ".".join(spec.identifier)
    if not chosen:
        raise ConfigurationError(
            f"Table {table}: the chosen partitions are of none of its topics, which are {', '.join(spec.topics)}.",
            "Choose partitions of those.",
        )
    given = [] if task.replay is None else [task.replay.start, task.replay.end]
    if len(chosen) > 1 and (offsets := [each for each in given if each[:1].isdigit() and not is_time(each)]):
        raise ConfigurationError(
            f"Table {table}: {offsets[0]} is an offset, and partitions of {len(chosen)} topics are chosen: "
            f"{', '.join(each.topic for each in chosen)}.",
            "Choose partitions of one topic, or give a time.",
        )


def _of_topic(commit: Commit, topic: str) -> Commit:
    """Return a commit that names the topic where it names partitions: those of several topics have the same numbers."""
    findings = tuple(_named(each, topic) for each in commit.findings)
    return replace(commit, findings=findings, classes=tuple(replace(each, topic=topic) for each in commit.classes))


def _named(finding: Finding, topic: str) -> Finding:
    facts: dict[str, object] = dict(finding.facts)
    if finding.check == "dead_letters":
        facts = {name: f"topic {topic} {each}" if name.startswith("sample_") else each for name, each in facts.items()}
    elif finding.check in ("offset_continuity", "data_loss"):
        facts = {f"{topic}/{name.removeprefix('partition_')}": each for name, each in facts.items()}
    else:
        return finding
    return replace(finding, facts=facts, problems=tuple(f"topic {topic}: {each}" for each in finding.problems))


def examined(spec: TopicTable, connections: Connections) -> list[Finding]:
    """Return what the gates find of a published table, of all its topics together.

    Args:
        spec: The table.
        connections: Catalog and cluster are asked.

    Raises:
        TableError: If there is no table yet.
    """
    found = examine(spec, connections.catalog, connections.cluster)
    if not spec.is_shared:
        return found
    others = [each for each in found if each.check != "offset_continuity"]
    offsets = [
        _named(examine_offsets(each, connections.catalog, connections.cluster), each.topic) for each in spec.each_topic
    ]
    checks = {each.check for each in found}
    return [each for each in merged([*others, *offsets]) if each.check in checks]
