"""The last record before a position: what is remembered of it, what tells a replaced log, and its compact text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.common.offsets import Loss, OffsetRange, Position, TopicIdentity, Watermarks
from kafka_lake.common.records import LastRecord, differs_at, from_text, last_record, to_text
from kafka_lake.errors import DataLossError
from kafka_lake.ingest.plan import backlog, resetting
from kafka_lake.ingest.topic_ends import LastRecords
from kafka_lake.runtime.plan import Plan, part, position_only

ME = TopicIdentity("c", "t", "pizzas")
OLD = last_record(7, 1, b"k", b"v")


@pytest.mark.parametrize(
    "other",
    [
        last_record(8, 1, b"k", b"v"),
        last_record(7, 2, b"k", b"v"),
        last_record(7, 1, b"l", b"v"),
        last_record(7, 1, b"k", b"w"),
        last_record(7, 1, None, b"v"),
        last_record(7, 1, b"k", None),
        last_record(7, 1, b"k", b""),
        last_record(7, 1, b"kv", b""),
        last_record(7, 1, b"", b"kv"),
    ],
)
def test_records_that_differ_in_one_thing_have_other_digests(other: LastRecord) -> None:
    assert other.digest != OLD.digest
    assert last_record(7, 1, b"k", b"v") == OLD


MORE = last_record(8, 1, None, b"more")


@pytest.mark.parametrize(
    ("seen", "complete", "found"),
    [
        ([OLD], True, None),
        ([], True, None),
        ([last_record(7, 1, b"k", b"other")], True, 7),
        ([OLD, MORE], True, 8),
        ([MORE], True, 8),
        # Who reads uncommitted records now may see aborted ones, which were passed over then.
        ([OLD, MORE], False, None),
        ([last_record(7, 1, b"k", b"other")], False, 7),
        ([OLD, last_record(9, 1, None, b"at the position")], True, None),
    ],
)
def test_replaced_log_is_told_by_a_record_it_had_not(seen: list[LastRecord], complete: bool, found: int | None) -> None:
    assert differs_at(OLD, 9, seen, complete) == found


digests = st.text("abcXYZ019-_", min_size=11, max_size=11)
entries = st.dictionaries(
    st.integers(0, 2000), st.tuples(st.integers(1, 2**40), st.none() | st.integers(0, 600), digests)
)


@given(entries)
def test_last_records_survive_their_text(found: dict[int, tuple[int, int | None, str]]) -> None:
    offsets = {p: offset for p, (offset, _, _) in found.items()}
    last = {
        p: LastRecord(offset - 1 - back, digest)
        for p, (offset, back, digest) in found.items()
        if back is not None and back < offset
    }
    assert from_text(offsets, to_text(offsets, last)) == last
    assert Position.from_json(Position(ME, offsets, {}, last).to_json()) == Position(ME, offsets, {}, last)


def test_last_records_take_twelve_bytes_a_partition() -> None:
    offsets = dict.fromkeys(range(1000), 5_000_000)
    last = {p: last_record(o - 1, 0, None, b"pizza") for p, o in offsets.items()}
    assert len(to_text(offsets, last)) == 11_999


def test_last_record_beyond_a_position_is_left_out() -> None:
    assert "last" not in json.loads(Position(ME, {0: 7}, {}, {0: OLD}).to_json())[ME.topic]


@pytest.mark.parametrize("text", ["a", "aaaaaaaaaaa,", "aaaaaaaaaaax"])
def test_malformed_last_records_are_refused(text: str) -> None:
    doc = {"pizzas": {"cluster_id": "c", "topic_id": "t", "offsets": {"0": 5}, "last": text}}
    with pytest.raises(ValueError, match="not a position"):
        Position.from_json(json.dumps(doc))


def test_backlog_names_a_replaced_log_and_the_ways_on() -> None:
    position = Position(ME, {0: 8, 1: 8}, {}, {0: OLD, 1: OLD})
    now = Watermarks(ME, {0: 0, 1: 0}, {0: 9, 1: 9}, replaced={0: 7})
    with pytest.raises(DataLossError, match="partition 0 was replaced: its record at offset 7") as error:
        backlog(position, now, starts={})
    assert "kafka-lake reset pizzas --to 0:8`" in error.value.remedy
    due = backlog(position, now, starts={}, accept_losses=True)
    assert due.losses == (Loss(0, 7, 8, "replaced"),)
    assert due.ranges == (OffsetRange(0, 8, 9), OffsetRange(1, 8, 9))
    assert due.before.last == {1: OLD}, "the record of the log as it is now is looked for"
    assert backlog(position, now, starts={}, partitions={1}).losses == ()


def test_reset_keeps_last_records_of_what_it_does_not_change() -> None:
    position = Position(ME, {0: 8, 1: 8, 2: 8}, {}, {0: OLD, 1: OLD, 2: OLD})
    now = Watermarks(ME, dict.fromkeys(range(3), 0), dict.fromkeys(range(3), 9), replaced={0: 7})
    assert resetting(position, now, {1: 8}).after == position
    assert set(resetting(position, now, {0: 8, 1: 8, 2: 3}).after.last) == {1}


def test_last_record_of_a_partition_that_is_left_out_stays() -> None:
    plan = Plan((OffsetRange(0, 8, 9), OffsetRange(1, 8, 9)), Position(ME, {0: 9, 1: 9, 2: 8}, {}, {2: OLD}), 0)
    assert part(plan, (OffsetRange(0, 8, 9),)).after.last == {2: OLD}
    assert position_only(plan.after).after.last == {2: OLD}


class _Log:
    """A log of one partition; offsets without a value have a marker, or records that are gone."""

    reads_committed = True

    def __init__(self, records: dict[int, bytes]) -> None:
        self.records, self.asked = records, list[list[OffsetRange]]()

    def last_records(self, _: str, ranges: list[OffsetRange]) -> dict[OffsetRange, list[LastRecord]]:
        self.asked.append(list(ranges))
        return {
            range_: [
                last_record(o, 0, None, self.records[o]) for o in range(range_.start, range_.end) if o in self.records
            ]
            for range_ in ranges
        }


@pytest.mark.parametrize(
    ("missing", "asked", "found"),
    [(0, 1, 99), (1, 1, 98), (2, 2, 97), (40, 3, 59), (100, 3, None)],
)
def test_last_record_is_looked_for_before_markers(missing: int, asked: int, found: int | None) -> None:
    log = _Log(dict.fromkeys(range(100 - missing), b"v"))
    now = Watermarks(ME, {0: 0}, {0: 100})
    last = LastRecords(log).remembered(Position(ME, {0: 100}), now).last  # type: ignore[arg-type]
    assert (last[0].offset if last else None, len(log.asked)) == (found, asked)


def test_small_commit_asks_brokers_once() -> None:
    log, records = _Log(dict.fromkeys(range(10), b"v")), None
    records = LastRecords(log)  # type: ignore[arg-type]
    position = Position(ME, {0: 5}, {}, {0: last_record(4, 0, None, b"v")})
    now = Watermarks(ME, {0: 0}, {0: 10})
    assert records.replaced(position, now, {0}) == {}
    assert records.remembered(position.advanced((OffsetRange(0, 5, 10),)), now).last[0].offset == 9
    assert len(log.asked) == 1
    # Where a record makes its batch fail, less than all is read.
    assert records.remembered(position.advanced((OffsetRange(0, 5, 7),)), now).last[0].offset == 6
    log.records[4] = b"another"
    assert records.replaced(position, now, {0}) == {0: 4}


@pytest.mark.parametrize(
    ("offset", "low", "end"), [(5, 0, 5), (5, 5, 10), (5, 0, 4)], ids=["no news", "expired", "shorter"]
)
def test_partition_without_anything_to_compare_costs_nothing(offset: int, low: int, end: int) -> None:
    log = _Log({4: b"another"})
    position = Position(ME, {0: offset}, {}, {0: last_record(4, 0, None, b"v")})
    now = Watermarks(ME, {0: low}, {0: end})
    assert LastRecords(log).replaced(position, now, {0}) == {}  # type: ignore[arg-type]
    assert not [asked for asked in log.asked if asked]
