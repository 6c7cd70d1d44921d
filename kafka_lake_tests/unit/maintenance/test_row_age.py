"""Row retention: which rows are old, when they are deleted, and what a table records of it."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kafka_lake.common.offsets import Position, Positions, TopicIdentity
from kafka_lake.maintenance.maintain import old_rows
from kafka_lake.maintenance.row_retention import (
    EXPIRED,
    Expired,
    OldRows,
    cutoff_ms,
    expiry_reason,
    last_expiry,
    proven_positions,
)
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.unit.catalog.test_maintenance_policy import OURS, table_of

DAY = 86_400_000


def test_condition_is_the_same_in_any_time_zone() -> None:
    moment = datetime(2026, 3, 1, 12, 30, 15, 250_000, UTC)
    old = OldRows(("_kafka", "timestamp"), int(moment.timestamp() * 1000))
    assert old.sql == "`_kafka`.`timestamp` < TIMESTAMP '2026-03-01 12:30:15.250Z'"


def test_rows_are_looked_for_in_time_and_not_all_the_time() -> None:
    ninety_days, now = Maintenance(row_retention="90d"), 1000 * DAY
    assert expiry_reason(table_of(OURS), Maintenance(), now) == ""
    assert expiry_reason(table_of(), ninety_days, now) == ""
    assert expiry_reason(table_of(OURS), ninety_days, now) == "rows older than 90d"

    def after(milliseconds: int, keep: str = "90d") -> str:
        last = Expired(cutoff_ms(ninety_days, now) or 0).to_json()
        return expiry_reason(table_of(OURS, **{EXPIRED: last}), Maintenance(row_retention=keep), now + milliseconds)

    assert after(DAY - 1) == ""
    assert after(DAY) == "rows older than 90d"
    # Settings that take more count at once; those that take less have nothing to do.
    assert after(0, keep="80d") == "rows older than 80d"
    assert after(9 * DAY, keep="100d") == ""
    # What is kept for an hour isn't kept for a day.
    hour = Maintenance(row_retention="1h")
    last = Expired(cutoff_ms(hour, now) or 0).to_json()
    table = table_of(OURS, **{EXPIRED: last})
    assert expiry_reason(table, hour, now + 359_000) == ""
    assert expiry_reason(table, hour, now + 360_000) == "rows older than 1h"
    assert cutoff_ms(Maintenance(row_retention="99999999d"), now) == -62_135_596_800_000


def test_age_of_a_row_is_that_of_its_record() -> None:
    def path(spec: TopicTable, identifier: tuple[str, str]) -> tuple[str, ...] | None:
        found = old_rows(spec, identifier, 1000 * DAY)
        return found and found.path

    spec = TopicTable("orders", maintenance=Maintenance(row_retention="90d"))
    assert path(spec, spec.identifier) == ("_kafka", "timestamp")
    assert path(spec, spec.dead_letter_table) == ("timestamp",)
    assert path(replace(spec, maintenance=Maintenance()), spec.identifier) is None
    keyed = replace(spec, write="upsert", key=("id",))
    assert [path(keyed, item) for item in keyed.identifiers] == [None] * 3


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
    table = table_of(*[OURS] * 5, **{EXPIRED: Expired(0, sequence, POSITIONS).to_json()})
    table.metadata.snapshots = table.metadata.snapshots[history]
    table.metadata.refs["main"].snapshot_id = table.metadata.snapshots[-1].snapshot_id
    assert proven_positions(table) == found


def test_a_commit_that_was_rolled_back_and_followed_by_another_proves_no_position() -> None:
    table = table_of(*[OURS] * 5, **{EXPIRED: Expired(0, 4, POSITIONS).to_json()})
    # Rows expired with the fourth, main was moved back to the third, and the fifth followed that.
    table.metadata.snapshots[4].parent_snapshot_id = 3
    assert proven_positions(table) == {}


@pytest.mark.parametrize("text", ["null", "", "[]", "{}", '{"before": "x", "sequence": 2}', "7"])
def test_what_cannot_be_read_is_as_if_it_were_not_there(text: str) -> None:
    assert last_expiry(table_of(OURS, **{EXPIRED: text})) is None
    assert last_expiry(table_of(OURS)) is None
    reported = Expired(5, 7, POSITIONS)
    assert last_expiry(table_of(OURS, **{EXPIRED: reported.to_json()})) == reported
