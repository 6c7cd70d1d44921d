"""One sensor for all topics of a cluster: it requests runs for topics whose ends are beyond their tables' positions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_lake.common.offsets import Position, Positions, Watermarks, least
from kafka_lake.errors import CatalogError, KafkaLakeError
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.orchestration.components.kafka_topics import KafkaTopics, new_topics
from kafka_lake.orchestration.keys import (
    CATCH_UP_TAG,
    CONTINUOUS_ASSET_TAG,
    CONTINUOUS_TAG,
    TABLE_TAG,
    YIELD_TAG,
    of_cluster,
    topic_key,
    work_name,
)
from kafka_lake.orchestration.metadata import last_reports, topic_materialization, topics_of
from kafka_lake.orchestration.partitions import partitions_of
from kafka_lake.orchestration.runs import Failures, InFlight, attempts, failed_lately, failures, in_flight
from kafka_lake.orchestration.sensors.requests import (
    FAR_BEHIND,
    Due,
    Pace,
    Sharing,
    Table,
    Work,
    fingerprint,
    groups,
    request,
    work_of,
)
from kafka_lake.orchestration.steps import as_failed_tick
from kafka_lake.spec.topic_table import TopicTable

if TYPE_CHECKING:
    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.kafka.cluster import KafkaCluster

TOPICS_SENSOR = "kafka_offsets"

Known = dict[str, Sequence[str]]
"""The keys of partitions in Dagster by `work_name`. A tick asks for those of topics with work or new partitions."""

# Dagster's daemon evaluates its sensors no more often, whatever they ask for.
_DAEMON_LOOP_SECONDS = 5.0


def build_sensor(
    interval_seconds: int,
    running: bool,
    catch_up_seconds: float = 0.0,
    cluster: str | None = None,
    many: Sequence[KafkaTopics | KafkaTopic] = (),
    shared_runs: int | None = None,
) -> dg.SensorDefinition:
    """Return the sensor of a cluster."""
    kafka = of_cluster("kafka", cluster)
    pace = Pace(float(interval_seconds), catch_up_seconds)
    places = shared_runs or 2 * (os.cpu_count() or 1)
    known: Known = {}

    @dg.sensor(
        name=of_cluster(TOPICS_SENSOR, cluster),
        asset_selection=dg.AssetSelection.tag(TABLE_TAG, cluster or ""),
        required_resource_keys={kafka, "catalog"},
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description=_description(pace),
    )
    def kafka_offsets(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        from kafka_lake.orchestration.check_results import freshness_changes

        specs = [spec for spec in topics_of(context.repository_def) if spec.cluster == cluster]
        if not specs and not many:
            return dg.SkipReason("No topics: add a YAML document of type kafka_lake.KafkaTopic to defs/.")
        resources: Any = context.resources
        with as_failed_tick():
            brokers: KafkaCluster = getattr(resources, kafka).cluster()
            new = new_topics(many, brokers.topics()) if many else ""
            if not specs:
                return dg.SkipReason(new or "No topics: no topic of the cluster matches topics: of a document.")
            catalog = resources.catalog.open()
            sharing = Sharing(places, _continuous(context.repository_def))
            if context.instance_ref is None:
                # Only one instance per process has a reference.
                known.clear()
            result = poll_topics(
                context, specs, cluster=brokers, catalog=catalog, pace=pace, sharing=sharing, known=known
            )
        if new and isinstance(result, dg.SensorResult):
            context.log.warning(new)
        try:
            events, cursor = freshness_changes(specs, brokers, catalog, context.cursor)
        except Exception as error:
            # Runs are requested all the same; the next tick evaluates freshness again.
            context.log.warning(f"The freshness of the tables can't be evaluated now: {error}")
            events, cursor = [], context.cursor
        return _with(result, events, cursor, new=new)

    return kafka_offsets


def _continuous(repository: dg.RepositoryDefinition | None) -> frozenset[dg.AssetKey]:
    """Return the tables of a code location whose runs continue for hours."""
    assets = repository.assets_defs_by_key.values() if repository else ()
    return frozenset(key for asset in assets for key, tags in asset.tags_by_key.items() if CONTINUOUS_ASSET_TAG in tags)


def _with(
    result: dg.SensorResult | dg.SkipReason, events: Sequence[dg.AssetCheckEvaluation], cursor: str | None, new: str
) -> dg.SensorResult | dg.SkipReason:
    """Return the result of a tick with check results, a cursor and a note about new topics."""
    if isinstance(result, dg.SkipReason):
        reason = f"{new} {result.skip_message}".strip()
        if not events:
            return dg.SkipReason(reason)
        return dg.SensorResult(skip_reason=reason, asset_events=events, cursor=cursor)
    return dg.SensorResult(
        run_requests=result.run_requests,
        dynamic_partitions_requests=result.dynamic_partitions_requests,
        asset_events=[*result.asset_events, *events],
        cursor=cursor,
    )


def _description(pace: Pace) -> str:
    """Return the description on the sensor's page: what it does, and what goes on after it is stopped."""
    catch_up = (
        f"A catch-up run continues for up to {pace.catch_up / 60:g} min; its tag {CATCH_UP_TAG} shows until when. "
    )
    return (
        "Compares the topics' end offsets with the tables' positions, and requests runs for topics with new "
        "records. Topics that are due together share runs. If the sensor is stopped, no further runs start; running "
        "ones continue. "
        f"{catch_up if pace.catch_up else ''}"
        f"A continuous run continues for the time that its topic sets; its tag {CONTINUOUS_TAG} shows until when. "
        "To end a run at once, terminate it on the Runs page: what it has committed stays, the rest is read later."
    )


def poll_topics(
    context: dg.SensorEvaluationContext,
    specs: Sequence[TopicTable],
    cluster: KafkaCluster,
    catalog: LakeCatalog,
    pace: Pace,
    sharing: Sharing,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    known: Known | None = None,
) -> dg.SensorResult | dg.SkipReason:
    """Evaluate; while there is nothing to do, poll the brokers at the pace until the daemon's next loop.

    Arguments and errors are those of `evaluate`.
    """
    evaluated = partial(evaluate, context, specs, catalog=catalog, pace=pace, sharing=sharing, known=known)
    last_poll = clock() + _DAEMON_LOOP_SECONDS - pace.interval
    answers = cluster.watermarks(spec.topic for spec in specs)
    result = evaluated(answers=answers)
    while isinstance(result, dg.SkipReason) and clock() < last_poll:
        sleep(pace.interval)
        before, answers = answers, cluster.watermarks(spec.topic for spec in specs)
        if _watermarks(answers) != _watermarks(before):
            result = evaluated(answers=answers)
    return result


def _watermarks(answers: Mapping[str, Watermarks | KafkaLakeError]) -> dict[str, Watermarks]:
    return {topic: answer for topic, answer in answers.items() if isinstance(answer, Watermarks)}


@dataclass
class _Tick:
    """The results of a tick so far, by `work_name`."""

    tables: dict[str, Table] = field(default_factory=dict)
    due: dict[str, list[Work]] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    additions: list[dg.AddDynamicPartitionsRequest] = field(default_factory=list)
    reports: list[tuple[Work, Watermarks]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def fail(self, spec: TopicTable, error: Exception) -> None:
        self.failures.append(f"{spec.topic}: {error}")
        self.reasons.append(str(error) if isinstance(error, CatalogError) else self.failures[-1])

    def note(self, work: Work, text: str) -> None:
        self.notes.append(f"{work.spec.topic}: {_behind(work)}{text}")


def evaluate(
    context: dg.SensorEvaluationContext,
    specs: Sequence[TopicTable],
    answers: Mapping[str, Watermarks | KafkaLakeError],
    catalog: LakeCatalog,
    pace: Pace,
    sharing: Sharing,
    known: Known | None = None,
) -> dg.SensorResult | dg.SkipReason:
    """Return the new partitions, the requested runs, and a materialization of each topic with news.

    A topic that can't be polled is logged and skipped.
    """
    known = {} if known is None else known
    from kafka_lake.catalog.positions import all_positions

    flight, tick = in_flight(context, specs), _Tick()
    for run_id in flight.outdated:
        # The next run works by the settings as they are now.
        context.instance.add_run_tags(run_id, {YIELD_TAG: "true"})
    failed = failed_lately(context, specs)
    polled = [spec for spec in specs if isinstance(answers[spec.topic], Watermarks)]
    positions = all_positions(catalog, [table.identifier for spec in polled for table in spec.tables])
    for spec in specs:
        try:
            now = answers[spec.topic]
            if isinstance(now, KafkaLakeError):
                raise now
            position, name = _reached(spec, positions), work_name(spec)
            work = work_of(spec, position, now, known.get(name, ()))
            if name not in tick.tables and (work.is_due or work.new_partitions):
                keys = context.instance.get_dynamic_partitions(str(partitions_of(name).name))
                known[name] = keys
                work = work_of(spec, position, now, keys)
        except Exception as error:
            context.log.error(f"Topic {spec.topic} is skipped: {error}")
            tick.fail(spec, error)
            continue
        works = tick.tables[name].works if name in tick.tables else ()
        tick.tables[name] = Table([*works, work], known.get(name, ()))
        if work.new_partitions:
            # The page of an empty topic would say that it is never materialized.
            tick.reports.append((work, now))
            tick.additions.append(partitions_of(name).build_add_request(list(work.new_partitions)))
        if name in flight.topics:
            tick.note(work, f"a run is in flight: {flight.topics[name][:8]}")
        elif not work.is_due:
            tick.note(work, "up to date")
        else:
            before = failures(context, spec) if name in failed else Failures()
            if (seconds := before.until - time.time()) > 0:
                tick.notes.append(f"{spec.topic}: its last runs failed, the next one starts in {seconds:.0f} s")
                continue
            tick.due.setdefault(name, []).append(work)
            if before.count:
                tick.failed.add(name)
            if sharing.runs_alone(spec, flight.pools):
                tick.alone.add(name)
            if not work.new_partitions:
                tick.reports.append((work, now))
    if tick.failures and len(tick.failures) == len(specs):
        # A failure of the brokers or the catalog concerns all topics.
        raise KafkaLakeError("No topic could be polled: " + "; ".join(dict.fromkeys(tick.reasons)))
    requests = _requests(context, tick, pace, places=sharing.places, flight=flight)
    if not requests and not tick.additions:
        return dg.SkipReason("; ".join([*tick.notes, *tick.failures]))
    # Dagster shows the log of a tick that requests runs, not its skip reason.
    context.log.info("; ".join([*tick.notes, *tick.failures]))
    topics = _topics(context.instance, tick.reports)
    return dg.SensorResult(run_requests=requests, dynamic_partitions_requests=tick.additions, asset_events=topics)


def _requests(
    context: dg.SensorEvaluationContext, tick: _Tick, pace: Pace, places: int, flight: InFlight
) -> list[dg.RunRequest]:
    """Return the runs of the topics that are due; ask a run to end if topics wait for its place."""
    due = [
        Due(name, sum(work.offsets for work in works), alone=name in tick.alone, failed=name in tick.failed)
        for name, works in tick.due.items()
    ]
    # The start of a run is its main cost: topics that become due during one share the next.
    may_share = [] if flight.starting else [topic for topic in due if topic.shares]
    shared = groups(may_share, len(flight.shared), places)
    alone = [topic for topic in due if not topic.shares]
    wanted = [(names, True) for names in shared] + [([topic.name], False) for topic in alone]
    runs = [
        (names, fingerprint([work for name in names for work in tick.due[name]]), is_shared)
        for names, is_shared in wanted
    ]
    before = attempts(context, [work for _, work, _ in runs])
    requested = {name for names, _, _ in runs for name in names}
    for name, works in tick.due.items():
        for work in works:
            tick.note(work, "a run is requested" if name in requested else "waits for a shared run")
    if len(may_share) > sum(map(len, shared)) and flight.shared and not flight.yielding:
        # The oldest one.
        context.instance.add_run_tags(flight.shared[0], {YIELD_TAG: "true"})
    # These topics share runs again after this one, which ends soon.
    once = {topic.name for topic in alone if topic.offsets > FAR_BEHIND or topic.failed}
    return [
        request(
            [tick.tables[name] for name in names],
            replace(pace, catch_up=0.0) if once.issuperset(names) else pace,
            work,
            before[work],
            shared=is_shared,
        )
        for names, work, is_shared in runs
    ]


def _behind(work: Work) -> str:
    return f"{work.offsets:,} behind, " if work.offsets else ""


def _topics(instance: dg.DagsterInstance, reports: Sequence[tuple[Work, Watermarks]]) -> list[dg.AssetMaterialization]:
    before, now = last_reports(instance, [work.spec for work, _ in reports]), time.time()
    topics = []
    for work, ends in reports:
        last = before.get(topic_key(work.spec))
        rate = last.rate(sum(ends.end.values()), now) if last else None
        topics.append(topic_materialization(work.spec, ends, work.behind, rate))
    return topics


def _reached(spec: TopicTable, positions: Mapping[tuple[str, str], Positions | Exception]) -> Position | None:
    """Return the least position of a topic's tables; None if one of them has none."""
    from kafka_lake.catalog.positions import position_in

    reached = []
    for table in spec.tables:
        of_table = positions[table.identifier]
        if isinstance(of_table, Exception):
            raise of_table
        position = position_in(of_table, spec.topic, spec.topics)
        if position is None:
            return None
        reached.append(position)
    return least(reached)
