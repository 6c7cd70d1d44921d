"""One sensor for all derived tables: it requests a run where an upstream table has new data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.errors import KafkaLakeError
from kafka_lake.orchestration.derived_assets import DERIVED_TAG, derived_of
from kafka_lake.orchestration.heartbeat import end_dead
from kafka_lake.orchestration.keys import key_of
from kafka_lake.orchestration.runs import IN_FLIGHT, pause_after
from kafka_lake.orchestration.steps import as_failed_tick

if TYPE_CHECKING:
    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.derived.plan import DerivePlan

SENSOR = "derived_tables"


@dataclass(frozen=True)
class LastRequest:
    """Consecutive requests for a table since its last publication.

    Args:
        head: The snapshot of the table at the last request.
        at: When the last run was requested, in seconds since 1970.
        times: The number of requests.
    """

    head: int | None
    at: float
    times: int


_AS_JSON = TypeAdapter(dict[str, LastRequest])


def last_requests(cursor: str | None) -> dict[str, LastRequest]:
    """Parse a cursor; a cursor of another version is empty, which loses nothing."""
    try:
        return _AS_JSON.validate_json(cursor or "{}")
    except ValidationError:
        return {}


def build_derived_sensor(interval_seconds: int, running: bool) -> dg.SensorDefinition:
    """Return the sensor."""

    @dg.sensor(
        name=SENSOR,
        asset_selection=dg.AssetSelection.tag(DERIVED_TAG, ""),
        required_resource_keys={"catalog"},
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Compares the snapshots of upstream tables with those that derived tables were computed from, "
        "and requests a run for each derived table that is behind, at most once in the duration of its `every`. "
        "Tables with a cron expression in `every` have a schedule instead.",
    )
    def derived_tables(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        resources: Any = context.resources
        with as_failed_tick():
            return evaluate(context, derived_of(context.repository_def), resources.catalog.open())

    return derived_tables


def evaluate(
    context: dg.SensorEvaluationContext,
    specs: Sequence[DerivedTable],
    catalog: LakeCatalog,
    clock: Callable[[], float] = time.time,
) -> dg.SensorResult:
    """Return the requested runs. A table that can't be examined is reported and skipped."""
    from kafka_lake.derived.plan import load, plan

    in_flight = end_dead(context.instance, context.instance.get_runs(dg.RunsFilter(statuses=IN_FLIGHT)))
    making = {key for run in in_flight for key in run.asset_selection or ()}
    now, before = clock(), last_requests(context.cursor)
    requests, notes, after = [], [], dict[str, LastRequest]()
    for spec in specs:
        last = before.get(spec.name)
        if last is not None:
            after[spec.name] = last
        if spec.at_most_every is None:
            continue
        if key_of(spec.identifier) in making:
            notes.append(f"{spec.name}: a run is in flight")
            continue
        try:
            todo = plan(spec, load(spec, catalog))
        except KafkaLakeError as error:
            notes.append(str(error))
            continue
        if todo is None:
            notes.append(f"{spec.name}: up to date")
            after.pop(spec.name, None)
            continue
        times = last.times if last is not None and last.head == todo.head else 0
        if last is not None and times and (seconds := min(last.at, now) + pause_after(times) - now) > 0:
            notes.append(f"{spec.name}: its last run published nothing, the next one starts in {seconds:.0f} s")
            continue
        if (seconds := _seconds_to_wait(spec, todo, now)) > 0:
            notes.append(f"{spec.name}: at most once in {spec.every}, the next run starts in {seconds:.0f} s")
            continue
        after[spec.name] = LastRequest(todo.head, now, times + 1)
        requests.append(_request(spec, now))
        notes.append(f"{spec.name}: a run is requested")
    if requests:
        # Dagster shows the log of a tick that requests runs, not its skip reason.
        context.log.info("; ".join(notes))
    return dg.SensorResult(
        run_requests=requests,
        skip_reason=None if requests else "; ".join(notes) or "No derived tables.",
        cursor=_AS_JSON.dump_json(after).decode(),
    )


def _seconds_to_wait(spec: DerivedTable, todo: DerivePlan, now: float) -> float:
    """Return the seconds until ``every:`` allows the next run."""
    if not spec.at_most_every or todo.table is None:
        return 0.0
    from kafka_lake.catalog.positions import DERIVED, ancestors, summary_of

    commits = ancestors(todo.table, todo.head)
    newest = next((commit for commit in commits if DERIVED in summary_of(commit)), None)
    return newest.timestamp_ms / 1000 + spec.at_most_every - now if newest else 0.0


def _request(spec: DerivedTable, now: float) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=f"{spec.name}:{now:.3f}",
        asset_selection=[key_of(spec.identifier)],
        tags={DERIVED_TAG: spec.name},
    )
