"""Row retention: which rows are old, when they are deleted, and what a table records of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    IcebergType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from kafka_lake.common.offsets import Position, Positions, TopicIdentity
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.maintenance.maintain import old_rows
from kafka_lake.maintenance.row_retention import (
    EXPIRED,
    Expired,
    OldRows,
    OldRowsCondition,
    condition_of,
    cutoff_ms,
    expiry_reason,
    last_expiry,
    proven_positions,
)
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.unit.catalog.test_maintenance_policy import OURS, table_of

DAY = 86_400_000


def condition(kind: PrimitiveType, before_ms: int) -> OldRowsCondition:
    return OldRowsCondition(("_kafka", "timestamp"), kind, before_ms)


@given(st.integers(-400 * DAY, 400 * DAY))
def test_date_is_old_when_its_last_moment_is(before_ms: int) -> None:
    newest = condition(DateType(), before_ms).expression.literal.value - 1
    assert (newest + 1) * DAY <= before_ms < (newest + 2) * DAY


def test_condition_is_the_same_in_both_engines_and_any_time_zone() -> None:
    moment = datetime(2026, 3, 1, 12, 30, 15, 250_000, UTC)
    before = int(moment.timestamp() * 1000)
    assert condition(TimestamptzType(), before).sql == "`_kafka`.`timestamp` < TIMESTAMP '2026-03-01 12:30:15.250Z'"
    assert condition(TimestampType(), before).sql == "`_kafka`.`timestamp` < TIMESTAMP_NTZ '2026-03-01 12:30:15.250'"
    assert condition(DateType(), before).sql == "`_kafka`.`timestamp` < DATE '2026-03-01'"
    micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert condition(TimestamptzType(), before).expression.literal.value == micros
    assert condition(DateType(), before).expression.literal.value == micros // (DAY * 1000)


def named(**columns: IcebergType) -> Any:
    schema = Schema(*(NestedField(n, name, kind) for n, (name, kind) in enumerate(columns.items(), 1)))
    return SimpleNamespace(schema=lambda: schema, name=lambda: ("shop", "orders"))


def test_a_column_that_tells_no_time_is_refused_with_those_that_do() -> None:
    struct = StructType(NestedField(21, "timestamp", TimestamptzType()), NestedField(22, "offset", LongType()))
    many = ListType(31, StructType(NestedField(32, "at", DateType())))
    table = named(id=LongType(), day=DateType(), _kafka=struct, many=many, text=StringType())
    assert condition_of(table, OldRows("day", 0)).path == ("day",)
    assert condition_of(table, OldRows("_kafka.timestamp", 0)).path == ("_kafka", "timestamp")
    for name in ("gone", "_kafka.gone", "many.at", "many.element.at", "day.x", "Day"):
        with pytest.raises(TableError, match=r"Table shop\.orders: row_retention: by: .* not a column") as caught:
            condition_of(table, OldRows(name, 0))
        assert "day, _kafka.timestamp" in str(caught.value)
    for name in ("id", "text", "_kafka"):
        with pytest.raises(TableError, match=r"of type .*No row was deleted"):
            condition_of(table, OldRows(name, 0))


def test_rows_are_looked_for_in_time_and_not_all_the_time() -> None:
    ninety_days, now = Maintenance(row_retention={"older_than": "90d"}), 1000 * DAY
    assert expiry_reason(table_of(OURS), Maintenance(), now, "at") == ""
    assert expiry_reason(table_of(), ninety_days, now, "at") == ""
    assert expiry_reason(table_of(OURS), ninety_days, now, "at") == "rows older than 90d"

    def after(milliseconds: int, keep: str = "90d", by: str = "at") -> str:
        last = Expired(cutoff_ms(ninety_days, now) or 0, "at").to_json()
        return expiry_reason(
            table_of(OURS, **{EXPIRED: last}), Maintenance(row_retention={"older_than": keep}), now + milliseconds, by
        )

    assert after(DAY - 1) == ""
    assert after(DAY) == "rows older than 90d"
    # Settings that take more count at once, as does another column; those that take less have nothing to do.
    assert after(0, keep="80d") == "rows older than 80d"
    assert after(0, by="created") == "rows older than 90d"
    assert after(9 * DAY, keep="100d") == ""
    # What is kept for an hour isn't kept for a day.
    hour = Maintenance(row_retention={"older_than": "1h"})
    last = Expired(cutoff_ms(hour, now) or 0, "at").to_json()
    table = table_of(OURS, **{EXPIRED: last})
    assert expiry_reason(table, hour, now + 359_000, "at") == ""
    assert expiry_reason(table, hour, now + 360_000, "at") == "rows older than 1h"
    assert cutoff_ms(Maintenance(row_retention={"older_than": "99999999d"}), now) == -62_135_596_800_000


def test_which_column_tells_the_age_of_a_row() -> None:
    def by(spec: TopicTable, identifier: tuple[str, str]) -> str | None:
        found = old_rows(spec, identifier, 1000 * DAY)
        return found and found.by

    spec = TopicTable("orders", maintenance=Maintenance(row_retention={"older_than": "90d"}))
    assert by(spec, spec.identifier) == "_kafka.timestamp"
    assert by(spec, spec.dead_letter_table) == "timestamp"
    assert by(replace(spec, metadata_column="meta"), spec.identifier) == "meta.timestamp"
    own = replace(spec, maintenance=Maintenance(row_retention={"older_than": "90d", "by": "created"}))
    assert by(own, spec.identifier) == "created"
    assert by(own, spec.dead_letter_table) == "timestamp"
    assert by(replace(spec, maintenance=Maintenance()), spec.identifier) is None
    keyed = replace(spec, write="upsert", key=("id",))
    assert [by(keyed, each) for each in keyed.identifiers] == [None] * 3
    with pytest.raises(ConfigurationError, match="Topic orders: row_retention needs the age"):
        by(replace(spec, metadata_column=None), spec.identifier)


AT = Position(TopicIdentity("c", "id", "orders"), {0: 5})
POSITIONS = {"orders": AT, "returns": Position(TopicIdentity("c", "id 2", "returns"), {0: 2})}


@pytest.mark.parametrize(
    ("sequence", "history", "found"),
    [
        # Snapshots 3 to 5 are left of a table of 5, and rows expired with the second, or the third.
        (2, slice(2, 5), POSITIONS),
        (3, slice(2, 5), POSITIONS),
        # They expired with the fourth, which isn't in the history: it was rolled back, maybe.
        (4, slice(2, 3), {}),
        (6, slice(2, 5), {}),
        (4, slice(0, 5), POSITIONS),
        (0, slice(2, 5), {}),
    ],
)
def test_a_position_that_was_written_down_counts_only_if_the_table_follows_it(
    sequence: int, history: slice, found: Positions
) -> None:
    table = table_of(*[OURS] * 5, **{EXPIRED: Expired(0, "at", sequence, POSITIONS).to_json()})
    table.metadata.snapshots = table.metadata.snapshots[history]
    table.metadata.refs["main"].snapshot_id = table.metadata.snapshots[-1].snapshot_id
    assert proven_positions(table) == found


def test_a_commit_that_was_rolled_back_and_followed_by_another_proves_no_position() -> None:
    table = table_of(*[OURS] * 5, **{EXPIRED: Expired(0, "at", 4, POSITIONS).to_json()})
    # Rows expired with the fourth, main was moved back to the third, and the fifth followed that.
    table.metadata.snapshots[4].parent_snapshot_id = 3
    assert proven_positions(table) == {}


@pytest.mark.parametrize("text", ["null", "", "[]", "{}", '{"before": "x", "by": 1, "sequence": 2}', "7"])
def test_what_cannot_be_read_is_as_if_it_were_not_there(text: str) -> None:
    assert last_expiry(table_of(OURS, **{EXPIRED: text})) is None
    assert last_expiry(table_of(OURS)) is None
    told = Expired(5, "at", 7, POSITIONS)
    assert last_expiry(table_of(OURS, **{EXPIRED: told.to_json()})) == told
