"""A table's dead letters in Dagster: a check of the table that warns."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import dagster as dg
from pyiceberg.table import Table

from kafka_lake.common.markdown import table as markdown_table
from kafka_lake.components.keys import dead_letter_check_op_name, of_cluster, table_key
from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.components.sample_rows import newest_rows, quoted_cell
from kafka_lake.components.table_page import in_a_window
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import row_count

CHECK = "no_dead_letters"
_SAMPLES, _FIRST_BYTES = 10, 400
_QUOTED = ("error_message", "value")
_COUNTED_BY_CLASS = 1_000_000
"""Of more dead letters than that, a report tells the number alone, which metadata know."""


def build_dead_letters(
    spec: TopicTable,
) -> dg.AssetChecksDefinition:
    """Return the check of a table that warns of dead letters."""
    remedy = (
        f"Fix the cause, then move them into the table: `kafka-lake dead-letters {spec.full_topic} --replay`, or the "
        f"job {of_cluster('replay_dead_letters', spec.cluster)}."
    )
    check = dg.AssetCheckSpec(
        CHECK, asset=table_key(spec), description=f"Warns while the table has dead letters. {remedy}"
    )

    # Not by asset_check, which makes the op's name of the key: those of a-b and a_b would be the same.
    @dg.multi_asset_check(name=dead_letter_check_op_name(spec), specs=[check])
    def no_dead_letters(catalog: CatalogResource) -> Iterator[dg.AssetCheckResult]:
        yield dg.AssetCheckResult(check_name=CHECK, asset_key=table_key(spec), **_verdict(spec, catalog.open()))

    return no_dead_letters


def dead_letter_evaluation(spec: TopicTable, catalog: LakeCatalog) -> dg.AssetCheckEvaluation:
    """Return what the check says of the dead-letter table as it is now."""
    return dg.AssetCheckEvaluation(asset_key=table_key(spec), check_name=CHECK, **_verdict(spec, catalog))


def _verdict(spec: TopicTable, catalog: LakeCatalog) -> dict[str, Any]:
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
        for each in batch.column("error_class").value_counts().to_pylist():
            classes[each["values"]] += each["counts"]
    return classes
