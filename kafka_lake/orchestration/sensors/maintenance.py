"""One sensor for the maintenance of a cluster's tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from kafka_lake.orchestration.heartbeat import end_dead
from kafka_lake.orchestration.jobs import health_check, health_check_key
from kafka_lake.orchestration.keys import MAINTENANCE_TAG, of_cluster
from kafka_lake.orchestration.metadata import topics_of
from kafka_lake.orchestration.runs import IN_FLIGHT
from kafka_lake.orchestration.steps import as_failed_tick
from kafka_lake.spec.topic_table import TopicTable, once_each

if TYPE_CHECKING:
    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.maintenance.maintain import Due

SENSOR = "kafka_maintenance"
_PAUSE_SECONDS = 900.0
_TICK_SECONDS = 20.0
_TABLES_OF_A_RUN = 10


@dataclass(frozen=True)
class Cursor:
    """State between ticks. Losing it loses nothing.

    Args:
        after: The table that was examined last; the next tick continues behind it.
        requested: When a run was requested last, by table, in seconds since 1970.
    """

    after: str = ""
    requested: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(text: str | None) -> Cursor:
        """Parse a cursor; a cursor of another version is empty."""
        try:
            return _AS_JSON.validate_json(text or "{}")
        except ValidationError:
            return Cursor()


_AS_JSON = TypeAdapter(Cursor)


def build_maintenance_sensor(
    job: Any, interval_seconds: int, running: bool, cluster: str | None = None
) -> dg.SensorDefinition:
    """Return the sensor of a cluster."""

    @dg.sensor(
        name=of_cluster(SENSOR, cluster),
        job=job,
        required_resource_keys={"catalog"},
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Reads the metadata of the tables, and requests runs that compact small files and expire old "
        "snapshots by the topics' `maintenance:` settings. A run has up to ten topics, the longest overdue first, "
        "and each topic at most once in 15 minutes.",
    )
    def kafka_maintenance(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        topics = [spec for spec in topics_of(context.repository_def) if spec.cluster == cluster]
        specs = once_each(topics)
        resources: Any = context.resources
        with as_failed_tick():
            return evaluate(context, specs, resources.catalog.open())

    return kafka_maintenance


def evaluate(
    context: dg.SensorEvaluationContext,
    specs: Sequence[TopicTable],
    catalog: LakeCatalog,
    clock: Callable[[], float] = time.time,
) -> dg.SensorResult:
    """Return the requested run, if a table needs maintenance. A table that can't be examined is logged and skipped."""
    from kafka_lake.maintenance.maintain import Tables, due

    in_flight = list(end_dead(context.instance, context.instance.get_runs(dg.RunsFilter(statuses=IN_FLIGHT))))
    runs = [run for run in in_flight if MAINTENANCE_TAG in run.tags]
    # A queued run may wait long for a continuous run of its table; other tables don't wait for it.
    running = [run for run in runs if run.status is not dg.DagsterRunStatus.QUEUED]
    if len(running) >= at_once(context.instance):
        names = "; ".join(run.tags[MAINTENANCE_TAG] for run in running)
        return dg.SensorResult(skip_reason=f"{names}: its maintenance is in flight", cursor=context.cursor)
    in_runs = {name for run in runs for name in run.tags[MAINTENANCE_TAG].split(",")}
    now, cursor = clock(), Cursor.of(context.cursor)
    known = {_name(spec) for spec in specs}
    # A clock may have been set back.
    requested = {name: min(at, now) for name, at in cursor.requested.items() if name in known}
    candidates: list[_Candidate] = []
    warnings: list[dg.AssetCheckEvaluation] = []
    # A tick hasn't the time for very many tables: they take turns.
    last = cursor.after
    for spec in sorted(specs, key=lambda spec: (_name(spec) <= cursor.after, _name(spec))):
        if clock() - now > _TICK_SECONDS:
            break
        last = _name(spec)
        if spec.maintenance.enabled is False:
            continue
        try:
            tables = due(spec, Tables(catalog, _no_spark))
        except Exception as error:
            context.log.error(f"Table {last} is skipped: {error}")
            continue
        tables = [table for table in tables if not table.left_alone]
        if any(table.needs.overdue for table in tables):
            warnings.append(health_check(spec, tables))
        paused = last in in_runs or (last in requested and now - requested[last] < _PAUSE_SECONDS)
        if not paused and (tables := [table for table in tables if table.needs.reasons]):
            candidates.append(_Candidate(spec, tables, requested.get(last, 0.0)))
    chosen = _in_one_run(candidates)
    request = _request(chosen, now) if chosen else None
    for candidate in chosen:
        context.log.info(candidate.reasons)
        requested[_name(candidate.spec)] = now
    return dg.SensorResult(
        run_requests=[request] if request else [],
        skip_reason=None if request else "No examined table needs maintenance now.",
        cursor=json.dumps(asdict(Cursor(last, requested))),
        asset_events=warnings,
    )


def at_once(instance: dg.DagsterInstance) -> int:
    """Return the limit of concurrent maintenance runs: that of the tag in ``dagster.yaml``, else 1.

    Dagster's queue enforces it. Without a queue, only the sensor does.
    """
    queue = instance.get_concurrency_config().run_queue_config
    limits = queue.tag_concurrency_limits or () if queue else ()
    values = [limit.get("limit") for limit in limits if _is_of_all(limit)]
    return min((value for value in values if isinstance(value, int)), default=1)


def _is_of_all(limit: Mapping[str, Any]) -> bool:
    return limit.get("key") == MAINTENANCE_TAG and limit.get("value") is None


@dataclass(frozen=True)
class _Candidate:
    """A topic whose tables need maintenance, and when a run was requested last; 0 for never."""

    spec: TopicTable
    tables: list[Due]
    requested: float

    @property
    def turn(self) -> tuple[float, int]:
        """Return the sort key: longest wait first, then most commits."""
        return self.requested, -max(table.needs.health.commits for table in self.tables)

    @property
    def reasons(self) -> str:
        return "; ".join(f"{table.name}: {', '.join(table.needs.reasons)}" for table in self.tables)


def _in_one_run(candidates: list[_Candidate]) -> list[_Candidate]:
    """Return the candidates of one run. An upsert table is alone: it may have to wait for its topic's run."""
    ordered = sorted(candidates, key=lambda candidate: candidate.turn)
    if not ordered or ordered[0].spec.is_keyed:
        return ordered[:1]
    return [candidate for candidate in ordered if not candidate.spec.is_keyed][:_TABLES_OF_A_RUN]


def _request(chosen: list[_Candidate], now: float) -> dg.RunRequest:
    names = [_name(candidate.spec) for candidate in chosen]
    return dg.RunRequest(
        run_key=f"{names[0]}:{now:.0f}",
        asset_check_keys=[health_check_key(candidate.spec) for candidate in chosen],
        tags={MAINTENANCE_TAG: ",".join(names)},
    )


def _name(spec: TopicTable) -> str:
    return ".".join(spec.identifier)


def _no_spark() -> Any:
    raise AssertionError("A sensor starts no Spark.")
