"""Results of the checks of a topic's table, by what Kafka and the catalog have now."""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg
from pyiceberg.table import Table

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import all_positions, position_in, row_count
from kafka_lake.common.offsets import Position, Watermarks, in_topic, lag
from kafka_lake.common.text import plain, seconds_of
from kafka_lake.common.text import table as markdown_table
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.records import RecordReference, arrival_times, unread
from kafka_lake.orchestration.checks import FRESHNESS, NO_DEAD_LETTERS
from kafka_lake.orchestration.keys import table_key
from kafka_lake.orchestration.metadata import in_a_window, records
from kafka_lake.orchestration.table_metadata import newest_rows, quoted_cell
from kafka_lake.runtime.commit import Finding
from kafka_lake.spec.rule import Rule
from kafka_lake.spec.topic_table import TopicTable

_SECONDS = 5.0
_SAMPLES, _FIRST_BYTES = 10, 400
_QUOTED = ("error_message", "value")
_COUNTED_BY_CLASS = 1_000_000
"""Of more dead letters, a report has only the number, which metadata have."""


def with_all_rules(findings: Sequence[Finding], rules: Sequence[Rule]) -> list[Finding]:
    """Return findings and one for each rule that was asked of nothing: without a commit, all rules hold."""
    known = {finding.check for finding in findings}
    return [*findings, *(Finding(rule.check, (), {"failed": 0}) for rule in rules if rule.check not in known)]


def share_metadata(finding: Finding) -> Mapping[str, float]:
    """Return which share of the rows breaks a rule, over all commits of a run."""
    evaluated, failed = (finding.facts.get(name) for name in ("evaluated", "failed"))
    if not finding.is_rule or not isinstance(evaluated, int) or not isinstance(failed, int):
        return {}
    return {"share_failed": round(failed / evaluated, 6) if evaluated else 0.0}


def evaluation(
    result: dg.AssetCheckResult | dg.AssetCheckEvaluation, blocking: bool = False
) -> dg.AssetCheckEvaluation:
    """Return the result of a check as an event."""
    assert result.asset_key is not None, "results name their table"
    assert result.check_name is not None, "results name their check"
    return dg.AssetCheckEvaluation(
        asset_key=result.asset_key,
        check_name=result.check_name,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
        blocking=blocking,
    )


def check_result(
    finding: Finding, asset_key: dg.AssetKey, more: Mapping[str, Any] | None = None
) -> dg.AssetCheckResult:
    """Return a gate's finding as an asset check result: what, where and how many."""
    # Dagster plots the figures of checks, also of a run without a commit.
    name = {"schema_evolution": "changed_columns", "data_loss": "lost_ranges", "offset_continuity": "offsets_compared"}
    has_number = any(isinstance(value, int) for value in finding.facts.values())
    number = len(finding.changes or finding.places)
    metadata: dict[str, Any] = {} if has_number else {name.get(finding.check, finding.check): number}
    metadata |= {key: _plain(value) for key, value in finding.facts.items() if key not in finding.places}
    if finding.places:
        metadata["partitions"] = records(
            {"partition": place, "offsets": str(finding.facts[place])} for place in finding.places
        )
    metadata |= {**share_metadata(finding), **(more or {})}
    if finding.changes:
        # Notes about a commit that was refused have neither time nor snapshot; a table has the same columns throughout.
        lines = [{"when": "", **asdict(note)} for note in finding.changes]
        metadata["changes"] = dg.MetadataValue.table([dg.TableRecord({"snapshot": "", **line}) for line in lines])
    return dg.AssetCheckResult(
        asset_key=asset_key,
        check_name=finding.check,
        passed=finding.passed,
        severity=dg.AssetCheckSeverity.WARN if finding.warns else dg.AssetCheckSeverity.ERROR,
        description=plain("; ".join(finding.problems)) or None,
        metadata=metadata,
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else str(value)


@dataclass(frozen=True)
class Freshness:
    """How long a topic's oldest record waits that its table lacks.

    Args:
        age: For how many seconds the oldest one does, by its Kafka timestamp; 0 if none does.
    """

    spec: TopicTable
    offsets: int
    age: float

    @property
    def is_fresh(self) -> bool:
        """Return whether that is within the limit."""
        return self.age <= seconds_of(str(self.spec.max_age))

    @property
    def result_fields(self) -> dict[str, Any]:
        """Return the fields of the check's result."""
        limit = f"freshness_limit is {self.spec.max_age}"
        waits = f"the oldest unread record is {self.age:.0f} s old, and {limit}"
        return {
            "passed": self.is_fresh,
            "severity": dg.AssetCheckSeverity.WARN,
            "description": None if self.is_fresh else f"{self.offsets} unread offsets; {waits}.",
            "metadata": {"age_of_oldest_unread_seconds": round(self.age, 3), "lag": self.offsets},
        }


def freshness(specs: Sequence[TopicTable], cluster: KafkaCluster, catalog: LakeCatalog) -> list[Freshness]:
    """Return how fresh tables are; without tables whose freshness is unknown."""
    if not specs:
        return []
    answers = cluster.watermarks(spec.topic for spec in specs)
    positions = all_positions(catalog, [spec.identifier for spec in specs])
    places: dict[tuple[tuple[str, str], str], list[RecordReference]] = {}
    for spec in specs:
        now, of_table = answers[spec.topic], positions[spec.identifier]
        if isinstance(now, Watermarks) and not isinstance(of_table, Exception):
            places[spec.identifier, spec.full_topic] = _unread(
                spec, now, position_in(of_table, spec.topic, spec.topics)
            )
    wanted = {place for of_table in places.values() for place in of_table}
    came, now_seconds = arrival_times(cluster, wanted, _SECONDS), time.time()
    found, untold = [], set[tuple[str, str]]()
    for spec in specs:
        its_places = places.get((spec.identifier, spec.full_topic))
        if its_places is None or any(place not in came for place in its_places):
            untold.add(spec.identifier)
            continue
        waiting = [at for place in its_places if (at := came[place]) is not None]
        now, of_table = answers[spec.topic], positions[spec.identifier]
        assert isinstance(now, Watermarks), "it has places"
        assert not isinstance(of_table, Exception), "it has places"
        position = position_in(of_table, spec.topic, spec.topics)
        offsets = sum(lag(in_topic(position, now), now).values()) if waiting else 0
        found.append(Freshness(spec, offsets, max(0.0, now_seconds - min(waiting)) if waiting else 0.0))
    return _by_table([arrival for arrival in found if arrival.spec.identifier not in untold])


def _by_table(found: Sequence[Freshness]) -> list[Freshness]:
    """Return one for each table: of several topics, all that waits, and the oldest."""
    tables: dict[tuple[str, str], Freshness] = {}
    for arrival in found:
        known = tables.get(arrival.spec.identifier)
        if known is not None:
            arrival = Freshness(known.spec, known.offsets + arrival.offsets, max(known.age, arrival.age))
        tables[arrival.spec.identifier] = arrival
    return list(tables.values())


def _unread(spec: TopicTable, now: Watermarks, position: Position | None) -> list[RecordReference]:
    if position is None and spec.start != "earliest":
        # Which records are the table's, its first run says.
        return []
    return list(unread(now, position).values())


def freshness_changes(
    specs: Sequence[TopicTable], cluster: KafkaCluster, catalog: LakeCatalog, cursor: str | None
) -> tuple[list[dg.AssetCheckEvaluation], str | None]:
    """Return results of the check where they differ from the last reports, and the reports after them."""
    timed = [table for spec in specs for table in spec.tables if table.max_age is not None]
    if not timed:
        return [], cursor
    before = _from(cursor)
    now = {".".join(arrival.spec.identifier): arrival for arrival in freshness(timed, cluster, catalog)}
    events = [
        dg.AssetCheckEvaluation(
            asset_key=table_key(arrival.spec), check_name=FRESHNESS, blocking=False, **arrival.result_fields
        )
        for name, arrival in now.items()
        if before.get(name) is not arrival.is_fresh
    ]
    known = {".".join(spec.identifier) for spec in timed}
    fresh = {name: was_fresh for name, was_fresh in before.items() if name in known}
    fresh |= {name: arrival.is_fresh for name, arrival in now.items()}
    return events, json.dumps({"fresh": fresh})


def _from(cursor: str | None) -> Mapping[str, bool]:
    try:
        found = json.loads(cursor or "{}")["fresh"]
    except (ValueError, KeyError, TypeError):
        # Of another version.
        return {}
    return found if isinstance(found, dict) else {}


def dead_letter_evaluation(spec: TopicTable, catalog: LakeCatalog) -> dg.AssetCheckEvaluation:
    """Return the check's result for the current dead-letter table."""
    return dg.AssetCheckEvaluation(
        asset_key=table_key(spec), check_name=NO_DEAD_LETTERS, **dead_letter_result(spec, catalog)
    )


def dead_letter_result(spec: TopicTable, catalog: LakeCatalog) -> dict[str, Any]:
    """Return the fields of the result for the current dead-letter table."""
    table = catalog.table(spec.dead_letter_table)
    count = row_count(table)
    classes = classes_in(table) if table is not None and 0 < count <= _COUNTED_BY_CLASS else Counter[str]()
    found = ", ".join(f"{number} {name}" for name, number in classes.most_common()) or f"{count} dead letters"
    samples = {"newest": _newest(spec, table)} if table is not None and count else {}
    return {
        "passed": not count,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": f"{found}: see `kafka-lake dead-letters {spec.full_topic}`." if count else "0 dead letters",
        "metadata": {"dead_letters": count, **samples, **classes},
    }


def _newest(spec: TopicTable, table: Table) -> dg.MetadataValue:
    """Return some of the newest dead letters, with what may be quoted of them."""
    columns = ["topic", "partition", "offset", "error_class", *(["error_message", "value"] if spec.samples else [])]
    rows = newest_rows(table, columns, _SAMPLES)
    cells = [
        [quoted_cell(_text(row[name]), spec) if name in _QUOTED else str(row[name]) for name in columns] for row in rows
    ]
    head = [{"error_class": "class", "error_message": "reason"}.get(name, name) for name in columns]
    return in_a_window(markdown_table(head, cells))


def _text(value: bytes | str | None) -> str:
    return value[:_FIRST_BYTES].decode(errors="replace") if isinstance(value, bytes) else value or ""


def classes_in(table: Table) -> Counter[str]:
    """Return how many dead letters a table has of each class, a batch of them in memory at a time."""
    classes: Counter[str] = Counter()
    for batch in table.scan(selected_fields=("error_class",)).to_arrow_batch_reader():
        for counted in batch.column("error_class").value_counts().to_pylist():
            classes[counted["values"]] += counted["counts"]
    return classes
