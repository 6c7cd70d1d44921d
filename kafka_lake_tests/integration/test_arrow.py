"""Rows that tasks decode and write by Arrow are those that a transform gets, and files are as Iceberg wants them."""

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile

from kafka_lake.catalog.positions import summary_of
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.commit import CheckFailedError
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers import append as arrow_stage
from kafka_lake.writers import decoding as spark_decoding
from kafka_lake.writers.append import DECODED_BY_ARROW
from kafka_lake_tests.conftest import Topic, View, data_files, keeps_frames
from kafka_lake_tests.written_by import by

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

DDL = (
    "id bigint, n int, x double, name string, ok boolean, at timestamp, tags array<string>, "
    "who struct<first: string, age: bigint>, points array<struct<y: double>>"
)

PARTITIONS = ("day(_kafka.timestamp)", "bucket(3, id)", "truncate(2, name)", "month(at)")
TIMES = [
    "2026-11-21T10:00:00Z", "2026-11-21T10:00:00.123456Z", "2026-11-21 10:00:00+02:00", "2026-11-21T10:00:00",
    "2026-11-21", "2026-11-21T10:00Z", "2026-11-21T10:00:00+0230", "2026-11-21T10:00:00+02", 
    "1560-11-21T10:00:00-17:30",
    "2026-11-21T10:00:00.1234567Z", "2026-11-21T23:59:60Z", "2026-11-21T24:00:00Z", "2026-02-30T00:00:00Z", "2026-1-2",
    "0002-01-01T00:00:00Z", "9999-12-30T23:59:59.999999Z", "2026-11-21T10Z", "2026-11-21T10:00:00+19:00", "now", "",
    "2026-11-21T10:00:00 Z", " 2026-11-21T10:00:00Z", "2026-11-21T10:00:00UTC", "2026-11-21T10:00:00z",
    "2026-11-21T10:00:00.Z", "2026-11-21T10:00:00,5Z", "+2026-11-21T10:00:00Z", "2026-11", "2026",
]  # fmt: skip
RAW = [
    b"", b" ", b"5", b"[]", b"null", b"{", b'{"id": 1}}', b'{"id": 1} {"id": 2}', b'{"id": 1,}', b"{'id': 1}",
    b'{"id": 01}', b'{"id": -0}', b'{"id": 1.0}', b'{"id": 1e2}', b'{"id": 9223372036854775807}', b'{"id": "5"}',
    b'{"id": 9223372036854775808}', b'{"id": 1, "id": 2}', b'{"other": 1, "other": 2}', b'{"x": NaN}', b'{"x": 5}',
    b'{"other": NaN}', b'{"other": -Infinity, "id": 4}', b'{"x": -0.0}', b'{"x": 1e400}', b'{"x": 1e-400}',
    b'{"x": 0.1}',
    b'{"x": 123456789012345678901234567890}', b'{"x": 2.2250738585072011e-308}', b'{"x": "1.5"}', b'{"name": 5}',
    b'{"name": "\xff"}', b'{"name": "\\ud83d\\ude00"}', b'{"name": "\\ud800"}', b'{"name": "\\u0000"}',
    b'{"name": "a\nb"}',
    b'{"name": {"a": 1}}', b'{"name": "\\q"}', b'{"name": "\x7f"}', b'{"ok": 1}', b'{"ok": false}', b'{"ok": "true"}',
    b'{"at": 5}', b'{"tags": "a"}', b'{"tags": [null, "a", []]}', b'{"tags": [null, "a"]}', b'{"tags": [1]}',
    b'{"tags": []}',
    b'{"who": {}}', b'{"who": {"age": "old"}}', b'{"who": []}', b'{"who": null}', b'{"points": [{}, null, {"y": 1}]}',
    b'{"points": [{"y": "1"}]}', b'{\n "id": 8,\n "name": "pretty"\n}',
    b'{"id": 9} \r\n\t', b" \n{}", b"{}\x0b", b"\xef\xbb\xbf{}", b"{}", b'{"other": {"deep": [[[]]]}, "id": 10}',
    b'{"other": "\xff", "id": 11}', b'{"other": "\\ud800", "id": 12}', b'{"other": 1e999, "id": 13}',
    b'{"other": ' + b"[" * 300 + b"]" * 300 + b', "id": 14}', b'{"id": 15 /* c */}', b'{"id": +1}', b'{"x": .5}',
    b'{"x": 1.}',
]  # fmt: skip


def plain(number: int) -> bytes:
    made = {"id": number, "x": number / 7, "name": f"ü{number}", "at": "2026-11-21T10:00:00.5Z", "tags": ["a", None]}
    return json.dumps(made).encode()


def noise(seed: int, count: int, largest: int) -> Iterator[bytes]:
    """Give JSON of fields that fit and of fields that don't."""
    draw = random.Random(seed)
    values: list[Any] = [None, True, 3, -(2**30), largest, 0.5, 1e300, "a", "2026-11-21T10:00:00Z", [], ["b"], [1], {}]
    values += [{"first": "x", "age": 5}, {"age": 1.5}, [{"y": 2.5}], [{"y": None}], "ä\u2028", "5"]
    for _ in range(count):
        names = draw.sample(["id", "n", "x", "name", "ok", "at", "tags", "who", "points", "other"], draw.randint(0, 4))
        yield json.dumps({name: draw.choice(values) for name in names}, ensure_ascii=draw.random() < 0.5).encode()


def rows_by_place(see: View, spark: Any) -> dict[tuple[int, int], str]:
    # By Spark: PyIceberg 0.12 reads null lists of structs as empty ones.
    rows = spark.table(see.catalog.spark_name(see.spec.identifier)).collect()
    assert len(rows) == len({(r["_kafka"]["partition"], r["_kafka"]["offset"]) for r in rows})
    return {(r["_kafka"]["partition"], r["_kafka"]["offset"]): repr(r) for r in rows}


def letters_by_place(see: View) -> dict[tuple[int, int], tuple[str, str]]:
    return {(r["partition"], r["offset"]): (r["error_class"], r["error_message"]) for r in see.dead_letters()}


def differences(mine: dict[Any, Any], theirs: dict[Any, Any]) -> dict[Any, Any]:
    return {
        key: (mine.get(key), theirs.get(key)) for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)
    }


def data_in(see: View) -> list[DataFile]:
    return [task.file for task in see.table.scan().plan_files()]


def by_arrow(see: View) -> int:
    head = see.table.current_snapshot()
    assert head is not None
    return int(summary_of(head).get(DECODED_BY_ARROW, -1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("schema", [DDL, DDL.replace("id bigint", "id bigint not null")])
def test_both_ways_make_the_same_rows_and_the_same_dead_letters(
    schema: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    first = [plain(n) for n in range(20)]
    every = {"id": 1, "n": 3, "ok": True, "who": {"first": "a", "age": 3}, "points": [{"y": 1.5}], "null": None}
    first.append(json.dumps(every).encode())
    specs = [topic.spec(schema, **by(arrow), partition_by=PARTITIONS) for arrow in (True, False)]
    specs[1] = TopicTable(**{**vars(specs[1]), "table": f"{topic.table}_spark"})
    named = [b'{"ID": 5, "Id": 6}', b'{"": 5, "id": 7}']
    odd = [*RAW, *named, *[json.dumps({"at": t}).encode() for t in TIMES], *noise(7, 400, 2**70)]
    random.Random(3).shuffle(odd)
    for number, value in enumerate([*first, None]):
        topic.send(value, number % 2)
    for spec in specs:
        ingest(spec, connections(), "first")
    for number, value in enumerate([*[plain(n) for n in range(300)], *odd, None, *[plain(n) for n in range(300)]]):
        topic.producer.produce(
            topic.name,
            value,
            b"k" if number % 3 else None,
            number % 2,
            headers=[("h", b"v")] if number % 5 == 0 else None,
        )
    assert topic.producer.flush(20) == 0
    for spec in specs:
        ingest(spec, connections(), "second")
    mine, theirs = (view(spec) for spec in specs)
    spark = connections().spark()
    assert differences(rows_by_place(mine, spark), rows_by_place(theirs, spark)) == {}
    assert differences(letters_by_place(mine), letters_by_place(theirs)) == {}
    assert {str(f.partition) for f in data_in(mine)} == {str(f.partition) for f in data_in(theirs)}
    assert mine.position() == theirs.position()
    assert by_arrow(mine) > 300
    assert by_arrow(theirs) == -1
    mine.assert_no_branches()


def test_files_are_as_iceberg_wants_them(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic(2)
    spec = topic.spec(
        "id bigint not null, at timestamp, name string",
        partition_by=("day(at)", "name"),
        table_properties={"write.parquet.compression-codec": "gzip"},
    )
    for number in range(40):
        at = f"2026-11-{number % 3 + 1:02}T10:00:00Z"
        topic.send({"id": number, "at": at if number else None, "name": "ab"[number % 2]}, number % 2)
    report = ingest(spec, connections(), "run")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert by_arrow(see) == 40
    files = data_in(see)
    assert {(f.partition[0], f.partition[1]) for f in files} == {
        *((day, name) for day in (20758, 20759, 20760) for name in "ab"),
        (None, "a"),
    }
    assert report.commits[-1].files == len(files)
    ids = {field.name: field.field_id for field in see.table.schema().fields}
    for file in files:
        data = pq.ParquetFile(file.file_path.removeprefix("file://"))
        assert data.metadata.row_group(0).column(0).compression == "GZIP"
        assert {f.name: int(f.metadata[b"PARQUET:field_id"]) for f in data.schema_arrow} == ids
        assert file.value_counts[ids["id"]] == file.record_count == data.metadata.num_rows
        assert file.lower_bounds[ids["id"]]
    # What Spark reads is what PyIceberg reads, and where filters prune files too.
    spark, name = connections().spark(), connections().catalog.spark_name(spec.identifier)
    assert spark.table(name).filter("at >= '2026-11-02' and at < '2026-11-03' and name = 'b'").count() == 7
    assert sorted(row["id"] for row in spark.table(name).collect()) == list(range(40))


def test_records_that_fail_keep_no_other_from_arrow(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec("id bigint, n int, at timestamp")
    seen = []
    late = '{"id": 5, "at": "9999-12-31T23:59:59-05:00"}'
    for batch in (['{"id": 1}'], ['{"id": "x"}', '{"id": 2}', '{"n": 1.5}'], ['{"id": 3}', late, "{", '{"id": 4}']):
        for value in batch:
            topic.send(value.encode())
        ingest(spec, connections(), "run")
        seen.append((by_arrow(view(spec)), len(view(spec).dead_letters())))
    assert seen == [(1, 0), (1, 2), (2, 4)]
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_cached_batch_is_freed_after_success_and_failure(
    new_topic: NewTopic, connections: NewConnections, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, spark, reports = new_topic(), connections().spark(), arrow_stage.written
    spec, kept = topic.spec("id bigint"), []

    def reported(*given: Any, error: Exception | None = None, **named: Any) -> Any:
        kept.append(keeps_frames(spark))
        if error is not None:
            raise error
        return reports(*given, **named)

    topic.send_ids(range(5))
    topic.send(b"broken")
    monkeypatch.setattr(arrow_stage, "written", partial(reported, error=OSError("no task could run")))
    with pytest.raises(OSError, match="no task could run"):
        ingest(spec, connections(), "run")
    assert not keeps_frames(spark)
    monkeypatch.setattr(arrow_stage, "written", reported)
    ingest(spec, connections(), "run")
    assert not keeps_frames(spark)
    assert all(kept)
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_a_batch_that_is_refused_leaves_no_file_in_any_snapshot(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send_ids(range(50))
    spec = topic.spec("id bigint", dead_letters="fail")
    ingest(spec, connections(), "good")
    before = view(spec).fingerprint()
    topic.send_ids(range(50))
    topic.send(b"broken")
    with pytest.raises(CheckFailedError):
        ingest(spec, connections(), "bad")
    assert view(spec).fingerprint() == before
    assert data_files(view(spec).table) == before[0][2]


def test_packages_that_tasks_lack_are_named(
    new_topic: NewTopic, connections: NewConnections, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    topic.send_ids(range(5))

    def lacking(_: object) -> Any:
        def run(batches: Any) -> Any:
            import a_package_that_is_not_there  # noqa: F401

            yield from batches

        return run

    from kafka_lake.writers.task import writer as task

    monkeypatch.setattr(task, "decode_and_write", lacking)
    spec = topic.spec()
    with pytest.raises(
        ConfigurationError, match="lack a package that tasks need: No module named 'a_package_that_is_not_there'"
    ):
        ingest(spec, connections(), "run")
    assert view(spec).catalog.table(spec.identifier) is None


@pytest.mark.exhaustive
def test_a_writer_that_doubles_rows_is_found_out(
    new_topic: NewTopic, connections: NewConnections, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    topic.send_ids(range(5))
    spec = topic.spec()
    ingest(spec, connections(), "good")
    topic.send_ids(range(5))
    before = view(spec).fingerprint()
    real = spark_decoding.write_records

    def doubled(*arguments: Any) -> Any:
        made = real(*arguments)
        object.__setattr__(made, "spans", (*made.spans, *made.spans))
        return made

    monkeypatch.setattr(spark_decoding, "write_records", doubled)
    # The scan is the judge, and finds each once.
    ingest(spec, connections(), "suspected")
    view(spec).assert_exactly_once(topic.ledger)
    topic.send_ids(range(5))

    def twice(*arguments: Any) -> Any:
        made, again = real(*arguments), real(*arguments)
        counts = {**made.counts, "records": 2 * made.counts["records"]}
        object.__setattr__(made, "counts", counts)
        object.__setattr__(made, "files", (*made.files, *again.files))
        object.__setattr__(made, "spans", (*made.spans, *again.spans))
        return made

    before = view(spec).fingerprint()
    monkeypatch.setattr(spark_decoding, "write_records", twice)
    with pytest.raises(CheckFailedError, match="distinct"):
        ingest(spec, connections(), "doubling")
    assert view(spec).fingerprint() == before
