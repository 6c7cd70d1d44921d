"""One sensor for all topics of a cluster: where Kafka's ends are beyond a table's position, it asks for a run.

It asks brokers and catalog only, and compares again at every tick: so it can't forget a failed run. Its cursor has
nothing but which results of checks it has told.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from kafka_lake.common.errors import CatalogError, KafkaLakeError
from kafka_lake.common.offsets import Position, Positions, Watermarks, least
from kafka_lake.components.assets import topics_of
from kafka_lake.components.failures import as_failed_tick
from kafka_lake.components.freshness import changes
from kafka_lake.components.has_topics import HasTopics, new_topics
from kafka_lake.components.kafka_topic import KafkaTopic
from kafka_lake.components.keys import TABLE_TAG, of_cluster, topic_key, work_name
from kafka_lake.components.materialize import CATCH_UP_TAG, CONTINUOUS_TAG
from kafka_lake.components.partitions import partitions_of
from kafka_lake.components.topic_page import told_before, topic_materialization
from kafka_lake.components.topic_runs import attempts, busy_topics, failed_lately, pause
from kafka_lake.components.work import Pace, Work, WorkId, fingerprint, request, work_of
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.lake.all_positions import all_positions
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import position_in

SENSOR = "kafka_offsets"

# Dagster's daemon evaluates its sensors no more often, whatever they ask for.
_DAEMON_LOOP_SECONDS = 5.0


def build_sensor(
    interval_seconds: int,
    running: bool,
    catch_up_seconds: float = 0.0,
    cluster: str | None = None,
    many: Sequence[HasTopics | KafkaTopic] = (),
) -> dg.SensorDefinition:
    """Return the sensor of a cluster.

    Args:
        interval_seconds: Time between two polls; if it is shorter than the daemon's loop, a tick polls several times.
        running: Whether it is on by default.
        catch_up_seconds: For how long a run polls instead of the sensor; 0 for not at all.
        cluster: The cluster's name; None if it has none.
        many: Documents about many topics of the cluster, and those by whose patterns topics share a table; topics that
            they don't know yet are told of.
    """
    kafka = of_cluster("kafka", cluster)
    pace = Pace(float(interval_seconds), catch_up_seconds)

    @dg.sensor(
        name=of_cluster(SENSOR, cluster),
        asset_selection=dg.AssetSelection.tag(TABLE_TAG, cluster or ""),
        required_resource_keys={kafka, "catalog"},
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description=_description(pace),
    )
    def kafka_offsets(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        specs = [spec for spec in topics_of(context.repository_def) if spec.cluster == cluster]
        if not specs and not many:
            return dg.SkipReason("No topics: add a YAML document of type kafka_lake.KafkaTopic to defs/.")
        resources: Any = context.resources
        with as_failed_tick():
            brokers: KafkaCluster = getattr(resources, kafka).cluster()
            new = new_topics(many, brokers.topics()) if many else ""
            if not specs:
                return dg.SkipReason(new or "No topics: none of the cluster matches topics: of a document.")
            catalog = resources.catalog.open()
            found = poll_topics(context, specs, cluster=brokers, catalog=catalog, pace=pace)
        if new and isinstance(found, dg.SensorResult):
            context.log.warning(new)
        try:
            events, told = changes(specs, brokers, catalog, context.cursor)
        except Exception as error:
            # Runs are asked for all the same, and the next tick looks again.
            context.log.warning(f"How fresh the tables are can't be told now: {error}")
            events, told = [], context.cursor
        return _with(found, events, told, new=new)

    return kafka_offsets


def _with(
    found: dg.SensorResult | dg.SkipReason, events: Sequence[dg.AssetCheckEvaluation], cursor: str | None, new: str
) -> dg.SensorResult | dg.SkipReason:
    """Return what a tick asks for, with what it tells beside that.

    Args:
        found: What it asks for, or why it asks for nothing.
        events: Results of checks.
        cursor: What has been told of them.
        new: What to do about new topics, if there are any.
    """
    if isinstance(found, dg.SkipReason):
        reason = f"{new} {found.skip_message}".strip()
        if not events:
            return dg.SkipReason(reason)
        return dg.SensorResult(skip_reason=reason, asset_events=events, cursor=cursor)
    return dg.SensorResult(
        run_requests=found.run_requests,
        dynamic_partitions_requests=found.dynamic_partitions_requests,
        asset_events=[*found.asset_events, *events],
        cursor=cursor,
    )


def _description(pace: Pace) -> str:
    """Return what the sensor does, and what stopping it leaves running, as Dagster's page of it shows."""
    catch_up = (
        f"A catch-up run continues for up to {pace.catch_up / 60:g} min, its tag {CATCH_UP_TAG} says until when. "
    )
    return (
        "Compares the ends of the topics with the positions of the tables, and requests a run for each topic with new "
        "records. If the sensor is stopped, no further runs start; running ones continue. "
        f"{catch_up if pace.catch_up else ''}"
        f"A continuous run continues for the time that its topic sets, its tag {CONTINUOUS_TAG} says until when. "
        "To end a run at once, terminate it on the Runs page: what it has committed stays, the rest is read later."
    )


def poll_topics(
    context: dg.SensorEvaluationContext,
    specs: Sequence[TopicTable],
    cluster: KafkaCluster,
    catalog: LakeCatalog,
    pace: Pace,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dg.SensorResult | dg.SkipReason:
    """Evaluate, and while there is nothing to do poll again, as often as asked for, until the daemon's next loop.

    Arguments and errors are those of `evaluate`. Between evaluations only the brokers are asked.
    """
    last_poll = clock() + _DAEMON_LOOP_SECONDS - pace.interval
    answers = cluster.watermarks(spec.topic for spec in specs)
    result = evaluate(context, specs, answers=answers, catalog=catalog, pace=pace)
    while isinstance(result, dg.SkipReason) and clock() < last_poll:
        sleep(pace.interval)
        before, answers = answers, cluster.watermarks(spec.topic for spec in specs)
        if _told(answers) != _told(before):
            result = evaluate(context, specs, answers=answers, catalog=catalog, pace=pace)
    return result


def _told(answers: Mapping[str, Watermarks | KafkaLakeError]) -> dict[str, Watermarks]:
    return {topic: answer for topic, answer in answers.items() if isinstance(answer, Watermarks)}


def evaluate(
    context: dg.SensorEvaluationContext,
    specs: Sequence[TopicTable],
    answers: Mapping[str, Watermarks | KafkaLakeError],
    catalog: LakeCatalog,
    pace: Pace,
) -> dg.SensorResult | dg.SkipReason:
    """Return what one poll asks for: new partitions and runs; and what Dagster shows of the topics.

    A topic that can't be polled is logged and skipped; the others are served.

    Args:
        context: Of the tick.
        specs: The topics.
        answers: What the brokers said of each.
        catalog: Where the tables are.
        pace: How the runs go on.

    Raises:
        KafkaLakeError: If no topic could be polled; the next tick tries again.
    """
    busy, failed = busy_topics(context, specs), failed_lately(context)
    due: dict[str, list[Work]] = {}
    every: dict[str, list[Work]] = {}
    keys: dict[str, Sequence[str]] = {}
    additions, failures, reasons, notes = [], [], [], []
    told: list[tuple[Work, Watermarks]] = []
    there = [each.identifier for spec in specs if isinstance(answers[spec.topic], Watermarks) for each in spec.tables]
    positions = all_positions(catalog, there)
    for spec in specs:
        try:
            now = answers[spec.topic]
            if isinstance(now, KafkaLakeError):
                raise now
            position, name = _reached(spec, positions), work_name(spec)
            known = context.instance.get_dynamic_partitions(str(partitions_of(name).name))
        except Exception as error:
            context.log.error(f"Topic {spec.topic} is skipped: {error}")
            failures.append(f"{spec.topic}: {error}")
            reasons.append(str(error) if isinstance(error, CatalogError) else failures[-1])
            continue
        work = work_of(spec, position, now, known)
        every.setdefault(name, []).append(work)
        keys[name] = known
        if work.new_partitions:
            # Of a topic without records, its page shouldn't say that it is never materialized.
            told.append((work, now))
            additions.append(partitions_of(name).build_add_request(list(work.new_partitions)))
        if name in busy:
            notes.append(f"{spec.topic}: {_behind(work)}a run is in flight: {busy[name][:8]}")
            continue
        if not work.offsets and not work.losses and not work.opens:
            notes.append(f"{spec.topic}: up to date")
            continue
        if name in failed and (seconds := pause(context, spec)) > 0:
            notes.append(f"{spec.topic}: its last runs failed, the next one starts in {seconds:.0f} s")
            continue
        due.setdefault(name, []).append(work)
        notes.append(f"{spec.topic}: {_behind(work)}a run is requested")
        if not work.new_partitions:
            told.append((work, now))
    if failures and len(failures) == len(specs):
        # What is wrong with brokers or catalog is the same for all.
        raise KafkaLakeError("No topic could be polled: " + "; ".join(dict.fromkeys(reasons)))
    if not due and not additions:
        return dg.SkipReason("; ".join([*notes, *failures]))
    asked = {name: fingerprint(works) for name, works in due.items()}
    before = attempts(context, list(asked.values()))
    ids = [WorkId(name, found, before[name, found]) for name, found in asked.items()]
    requests = [request(every[each.name], keys[each.name], pace, each) for each in ids]
    # Dagster shows no reason of a tick that requests runs, but its log.
    context.log.info("; ".join([*notes, *failures]))
    topics = _topics(context.instance, told)
    return dg.SensorResult(run_requests=requests, dynamic_partitions_requests=additions, asset_events=topics)


def _behind(work: Work) -> str:
    return f"{work.offsets:,} behind, " if work.offsets else ""


def _topics(instance: dg.DagsterInstance, told: Sequence[tuple[Work, Watermarks]]) -> list[dg.AssetMaterialization]:
    before, now = told_before(instance, [work.spec for work, _ in told]), time.time()
    found = []
    for work, ends in told:
        last = before.get(topic_key(work.spec))
        rate = last.rate(sum(ends.end.values()), now) if last else None
        found.append(topic_materialization(work.spec, ends, work.behind, rate))
    return found


def _reached(spec: TopicTable, positions: Mapping[tuple[str, str], Positions | Exception]) -> Position | None:
    """Return how far all tables of a topic are; None if one of them hasn't begun.

    Raises:
        Exception: If a table couldn't be asked.
    """
    found = []
    for each in spec.tables:
        its = positions[each.identifier]
        if isinstance(its, Exception):
            raise its
        found.append(position_in(its, spec.topic, spec.topics))
    begun = [each for each in found if each is not None]
    return least(begun) if len(begun) == len(found) else None
