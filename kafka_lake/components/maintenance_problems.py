"""What `maintenance:` asks for and can't be, given the topic's other settings."""

from collections.abc import Iterator
from typing import Any

from kafka_lake.ingest.decode.ddl import check_ddl
from kafka_lake.lake.maintenance.order_settings import columns_of, order_problem
from kafka_lake.lake.maintenance.settings import Maintenance


def maintenance_problems(topic: Any, policy: Maintenance, complete: bool) -> Iterator[str]:
    """Give what can't be.

    Args:
        topic: The topic's `TopicSettings`.
        policy: The settings of its maintenance.
        complete: Whether the cluster's own settings are among them.
    """
    if problem := order_problem(policy):
        yield problem
    else:
        yield from _unknown_columns(topic, policy)
    if policy.keep_rows is None:
        own = topic.maintenance
        if complete and own is not None and own.by is not None:
            yield f"maintenance: by: {own.by} has no effect without keep_rows. Set both, or leave it out."
        return
    yield from _row_problems(topic, policy)
    if policy.by is None:
        if topic.metadata_column is None:
            yield (
                "maintenance: keep_rows needs Kafka's timestamp, which the table doesn't have without "
                "metadata_column:. Name another column with by:."
            )
        return
    declared = _declared(topic)
    if declared is not None and policy.by not in declared and policy.by.partition(".")[0] not in declared:
        yield f"maintenance: by: {policy.by} isn't in schema:, whose columns are {', '.join(declared)}."


def _row_problems(topic: Any, policy: Maintenance) -> Iterator[str]:
    if not policy.keep_rows_seconds:
        yield f"maintenance: keep_rows: {policy.keep_rows} would delete every row. Write null to keep all rows."
    if topic.write != "append":
        yield (
            f"maintenance: keep_rows: {policy.keep_rows} isn't for write: {topic.write}, where a key that expired "
            "would look like one that never was. Set keep_rows: null for this topic, or delete rows at the source."
        )
    for setting in ("routes", "route_by", "topics"):
        if getattr(topic, setting):
            yield (
                f"maintenance: keep_rows: {policy.keep_rows} can't be combined with {setting}: yet. Set keep_rows: "
                "null for this document."
            )


def _unknown_columns(topic: Any, policy: Maintenance) -> Iterator[str]:
    if (declared := _declared(topic)) is None:
        return
    for setting, columns in columns_of(policy).items():
        for each in columns:
            if each not in declared and each.partition(".")[0] not in declared:
                yield f"maintenance: {setting}: {each} isn't in schema:, whose columns are {', '.join(declared)}."


def _declared(topic: Any) -> list[str] | None:
    """Return the columns of the topic's table; None if only the table tells them."""
    if topic.columns is None or topic.transform is not None:
        return None
    declared = [*check_ddl(topic.columns), *filter(None, (topic.metadata_column,))]
    return [*declared, topic.key_column] if topic.key_format is not None else declared
