"""What must not grow with the records: what is learned of names that are data, and what is held of rows and letters."""

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, MapType, NestedField, StringType, StructType

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.dead_letters.reconcile import joined
from kafka_lake.errors import AuditFailedError
from kafka_lake.formats.json.task.decoder import JsonDecoder
from kafka_lake.formats.json.task.types import leaves
from kafka_lake.formats.task.batches import dumped, loaded
from kafka_lake.formats.task.columns import Rules
from kafka_lake.formats.task.decoded import Observed, new_field_leaves
from kafka_lake.ingest import published
from kafka_lake.ingest.audit import noted
from kafka_lake.orchestration import check_results
from kafka_lake.schema.rules import Change
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.schema_changes import refuse_changes, refuse_too_many

LONG = ("long",)
COLUMNS = (
    ("id", LONG, ("id",), False, "long"),
    ("s", ("struct", (("a", LONG, ("a",), False, "long"),)), ("s",), False, "struct"),
)
RULES = Rules(infer=True, max_columns=50)
SHAPES: dict[str, Callable[[str], dict[str, Any]]] = {
    "at the top": lambda name: {name: 1},
    "in a column": lambda name: {"s": {"a": 1, name: "x"}},
    "in a new struct": lambda name: {"m": {name: {"b": 1}}},
    "in a list": lambda name: {"l": [{name: 1}]},
    "empty": lambda name: {name: []},
    "null": lambda name: {name: None, "m": {name: None}},
    "type_errors": lambda name: {"id": {name: 1}},
}


def batch(shape: str, first: int, count: int) -> pa.Array:
    made = SHAPES[shape]
    return pa.array([json.dumps({"id": 1, **made(f"user_{first + n:07d}")}).encode() for n in range(count)])


def reported(seen: Observed) -> str:
    return dumped(seen, pa.RecordBatch.from_pydict({"partition": [0], "offset": [0]}))


@pytest.mark.slow
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_told_of_a_batch_and_of_all_together_is_bounded(shape: str, plain: bool) -> None:
    decoder = JsonDecoder(COLUMNS, RULES, None, plain)
    texts = []
    for first in range(0, 2_000, 200):
        found = decoder.decode(batch(shape, first, 200))
        if found.seen:
            texts.append(reported(found.seen))
    assert all(len(text) < 51 * 60 * 2 for text in texts)
    together = loaded(texts, RULES.max_columns)
    assert new_field_leaves(together.new_fields) <= 51
    assert leaves(together.type_errors) <= 51
    assert len(together.empty) <= 51
    if shape == "null":
        assert not together.type_errors
        return
    # One more than the table may have is enough to know that it can't.
    assert max(new_field_leaves(together.new_fields), leaves(together.type_errors), len(together.empty)) == 51
    assert together.more >= 1_000
    assert loaded([reported(together)], RULES.max_columns) == together


def test_what_is_within_the_bound_is_told_whole() -> None:
    seen = JsonDecoder(COLUMNS, RULES).decode(batch("in a column", 0, 50)).seen
    assert new_field_leaves(seen.new_fields) == 50
    assert seen.more == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_of_distinct_names_takes_no_memory_for_each_name_of_each_record(shape: str) -> None:
    values = batch(shape, 0, 10_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    decoded = JsonDecoder(COLUMNS, Rules(infer=True)).decode(values)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert len(decoded.error_class) == 10_000
    # Arrow's inference over the whole batch takes 700 to 1,400 MB.
    assert grown < 400


def test_a_part_says_which_record_of_the_whole_batch_stopped_the_parser() -> None:
    values = [b'{"id": %d, "nothing": null}' % n for n in range(4_000)]
    values[3_210] = b'{"id": "no number", "nothing": null}'
    values[3_500] = b'{"id": 1, "nothing": null'
    decoded = JsonDecoder(COLUMNS, RULES).decode(pa.array(values))
    errors = {n: error for n, error in enumerate(decoded.error_class.to_pylist()) if error}
    assert errors == {3_210: "wrong_type", 3_500: "not_json"}
    assert decoded.rows[3_999].as_py() == {"id": 3_999, "s": None}


def test_fields_that_are_null_at_any_depth_in_some_parts_only_cost_no_row() -> None:
    values = [b'{"id": %d, "s": {"a": 7, "n%d": null}, "e": []}' % (n, n // 1_000) for n in range(5_000)]
    decoded = JsonDecoder(COLUMNS, RULES).decode(pa.array(values))
    assert decoded.rows.to_pylist() == [{"id": n, "s": {"a": 7}} for n in range(5_000)]
    assert decoded.seen.empty == {"e"}
    assert not decoded.seen.new_fields


def schema(*names: str, inner: int = 0, extra: tuple[NestedField, ...] = ()) -> Schema:
    fields = [NestedField(n, name, LongType()) for n, name in enumerate(names, 1)]
    if inner:
        struct = StructType(*(NestedField(1_000 + n, f"user_{n}", LongType()) for n in range(inner)))
        fields.append(NestedField(500, "scores", struct))
    return Schema(*fields, *extra)


def test_too_many_columns_are_refused_by_name_with_what_to_do() -> None:
    spec = TopicTable("orders", "shop", "orders", max_columns=10)
    before = schema("id", "at")
    refuse_too_many(spec, before, schema("id", "at", inner=8))
    with pytest.raises(AuditFailedError) as refused:
        refuse_too_many(spec, before, schema("id", "at", inner=9))
    said = str(refused.value)
    some = "in scores, such as scores.user_0, scores.user_1, scores.user_2"
    for part in ("Topic orders", "table shop.orders", "9 new columns", "the 2 existing", "more than 10 columns", some):
        assert part in said
    for remedy in ("columns:", "map", "ignore_new"):
        assert remedy in said
    with pytest.raises(AuditFailedError, match="at the top level, such as a, b") as made:
        refuse_too_many(TopicTable("orders", "shop", "orders", max_columns=1), None, schema("a", "b"))
    assert "ignore_new" not in str(made.value)


def test_columns_that_are_there_and_those_of_the_metadata_count_for_nothing() -> None:
    spec = TopicTable("orders", "shop", "orders", max_columns=2)
    origin = NestedField(900, "_kafka", StructType(NestedField(901, "offset", LongType())))
    refuse_too_many(spec, None, schema("a", "b", extra=(origin,)))
    # Somebody made them, or the limit was another one.
    refuse_too_many(spec, schema("a", "b", "c"), schema("a", "b"))
    with pytest.raises(AuditFailedError, match="at least 1 new columns and the 3 existing columns"):
        refuse_too_many(spec, schema("a", "b", "c"), schema("d"))
    pairs = NestedField(800, "m", MapType(801, StringType(), 802, LongType()))
    with pytest.raises(AuditFailedError, match=r"m\.key, m\.value"):
        refuse_too_many(spec, schema("a"), schema("a", extra=(pairs,)))


def test_messages_and_notes_of_many_columns_stay_short() -> None:
    spec = TopicTable("orders", "shop", "orders", evolution="ignore_new")
    changes = [Change(f"user_{n}", "added", "", "long") for n in range(1_001)]
    with pytest.raises(AuditFailedError, match="and 951 more changes"):
        refuse_changes(spec, changes)
    notes = noted(spec, (), changes, (), {})
    assert len(notes) == 101
    assert (notes[0].column, notes[-1].what) == ("user_0", "901 more not added")


ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("_kafka", pa.struct([("topic_id", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])),
    ]
)


@pytest.fixture
def catalog(catalog: LakeCatalog) -> LakeCatalog:
    catalog.ensure_namespace("shop")
    return catalog


def with_bounds(table: Table) -> Any:
    """Return what gives a table's files with the bounds of the offsets that are in them."""
    field = table.schema().find_field("_kafka.offset")
    scan = table.scan

    def files(*_: Any, **settings: Any) -> Any:
        made = scan(*_, **settings)
        tasks = list(made.plan_files())
        for task in tasks:
            content = pq.read_table(task.file.file_path.removeprefix("file://"))
            least = pc.min(pc.struct_field(content["_kafka"], "offset")).as_py()
            task.file._data[10] = {field.field_id: to_bytes(LongType(), least)}
        return SimpleNamespace(plan_files=lambda: tasks)

    return files


@pytest.mark.slow
def test_the_published_rows_are_looked_at_a_part_at_a_time(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.pyiceberg.create_table(("shop", "orders"), ROWS)
    for first in range(0, 100, 10):
        origins = [{"topic_id": "t", "partition": n % 2, "offset": n} for n in range(first, first + 10)]
        table.append(pa.Table.from_pylist([{"id": o["offset"], "_kafka": o} for o in origins], ROWS))
    twice = [{"topic_id": "t", "partition": 1, "offset": 31}, {"topic_id": "another", "partition": 0, "offset": 30}]
    others = [{"id": 1, "_kafka": None}]
    table.append(pa.Table.from_pylist([*({"id": 0, "_kafka": o} for o in twice), *others], ROWS))
    position = Position(TopicIdentity("c", "t", "orders"), {0: 100, 1: 99})
    whole = published._duplicates(table, [position], AlwaysTrue())
    assert whole == [
        "topic orders partition 1 has 1 rows too many, the first at offset 31",
        "topic orders partition 1 has offset 99, its position is 99",
    ]
    seen: list[int] = []
    keys_of = published._keys_of
    monkeypatch.setattr(published, "_keys_of", lambda rows: (seen.append(len(rows)), keys_of(rows))[1])
    with monkeypatch.context() as patching:
        patching.setattr(table, "scan", with_bounds(table))
        parts = published.windows(table, "_kafka.offset", 25)
    assert parts[0][0] == 0
    assert parts[-1][1] is None
    assert [end for _, end in parts[:-1]] == [start for start, _ in parts[1:]]
    monkeypatch.setattr(published, "windows", lambda *_: parts)
    assert published._duplicates(table, [position], AlwaysTrue()) == whole
    assert len(seen) == len(parts) >= 4
    assert max(seen) <= 32
    assert sum(seen) == 102


def test_dead_letters_are_told_by_class_up_to_a_number_and_by_number_beyond(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = TopicTable("orders", "shop", "orders")
    none = check_results.dead_letter_result(spec, catalog)
    assert (none["passed"], none["description"], none["metadata"]) == (True, "0 dead letters", {"dead_letters": 0})
    letters = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("error_class", pa.string()),
            ("error_message", pa.string()),
            ("value", pa.binary()),
        ]
    )
    table = catalog.pyiceberg.create_table(spec.dead_letter_table, letters)
    for offset, name in enumerate(("not_json", "wrong_type", "not_json")):
        place = {"topic": "orders", "partition": 7, "offset": offset, "error_message": f"no. {offset}"}
        letter = {"error_class": name, **place, "value": b"4111 | \xff" + b"x" * 500}
        table.append(pa.Table.from_pylist([letter], letters))
    found = check_results.dead_letter_result(spec, catalog)
    newest = found["metadata"].pop("newest").value
    assert (found["passed"], found["metadata"]) == (False, {"dead_letters": 3, "not_json": 2, "wrong_type": 1})
    assert found["description"] == "2 not_json, 1 wrong_type: see `kafka-lake dead-letters orders`."
    assert [line.split(" | ")[:5] for line in newest.splitlines()[2:]] == [
        ["| orders", "7", "2", "not_json", "`no. 2`"],
        ["| orders", "7", "1", "wrong_type", "`no. 1`"],
        ["| orders", "7", "0", "not_json", "`no. 0`"],
    ]
    assert "4111 \\| \ufffd" in newest
    monkeypatch.setattr(check_results, "_SAMPLES", 1)
    masked = check_results.dead_letter_result(replace(spec, mask=(r"\d{4}",)), catalog)["metadata"]["newest"].value
    assert "4111" not in masked
    assert "no. 1" not in masked
    hidden = check_results.dead_letter_result(replace(spec, samples=False), catalog)["metadata"]["newest"].value
    assert hidden.split("\n")[0] == "| topic | partition | offset | class |"
    assert hidden.rstrip().split("\n")[2:] == ["| orders | 7 | 2 | not_json |"]

    def read(_: Table) -> Any:
        raise AssertionError("every letter was read")

    monkeypatch.setattr(check_results, "_COUNTED_BY_CLASS", 2)
    monkeypatch.setattr(check_results, "classes_in", read)
    found = check_results.dead_letter_result(spec, catalog)
    del found["metadata"]["newest"]
    assert (found["passed"], found["metadata"]) == (False, {"dead_letters": 3})
    assert found["description"] == "3 dead letters: see `kafka-lake dead-letters orders`."


def test_few_far_places_are_looked_at_apart_and_many_as_one() -> None:
    far = [OffsetRange(p, n * 1_000_000, n * 1_000_000 + 5) for p in (0, 1) for n in (0, 3)]
    assert joined([far, []], 100_000) == far
    assert joined([far, None], 100_000) is None
    near = [OffsetRange(0, n, n + 1) for n in (1, 50_000, 99_000)]
    assert joined([near], 100_000) == [OffsetRange(0, 1, 99_001)]
    many = [OffsetRange(n % 3, n * 1_000_000, n * 1_000_000 + 1) for n in range(300)]
    assert [(r.partition, r.start) for r in joined([many], 100_000) or []] == [(0, 0), (1, 1_000_000), (2, 2_000_000)]
