"""Decoding by the real Spark, over frames like those of its Kafka source: classes, messages, and the way back."""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.formats import ERROR_CLASSES
from kafka_lake.formats.columns import Target
from kafka_lake.formats.decoder import decoded as decoded_by
from kafka_lake.formats.json.driver import Json
from kafka_lake.formats.rows import dead_letters_of, records_from_dead_letters, transformed
from kafka_lake.formats.task.decoded import ANOTHER_TYPE
from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.spec.topic_table import TopicTable

pytestmark = pytest.mark.integration

SOURCE = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
Records = Callable[[Iterable[bytes | None]], DataFrame]


@pytest.fixture
def records(spark_resource: SparkResource) -> Records:
    """Return a function that makes a frame of the Kafka source's columns, one record for each value."""
    # Begun here: `columns` needs it too, whichever test of a process is the first.
    session = spark_resource.spark_session

    def make(values: Iterable[bytes | None]) -> DataFrame:
        rows = [
            (b"\x00k", value, "t", 1, offset, AT + timedelta(seconds=offset), offset % 2, [("h", b"\xff"), ("h", None)])
            for offset, value in enumerate(values)
        ]
        return session.createDataFrame(rows, SOURCE)

    return make


def columns(ddl: str) -> T.StructType:
    return T._parse_datatype_string(ddl)


def decode_json(
    records: DataFrame, columns: T.StructType, max_record_bytes: int | None = None, is_declared: bool = True
) -> DataFrame:
    target = Target(columns)
    decoder = Json(declared=target if is_declared else None)
    return decoded_by(records, decoder, target, max_record_bytes).drop("observed")


def verdicts(decoded: DataFrame) -> list[tuple[str | None, str | None]]:
    return [(r.error_class, r.error_message) for r in decoded.orderBy("offset").collect()]


def spec(**settings: Any) -> TopicTable:
    return TopicTable("t", "it", "t", **settings)


NOT_JSON = [
    (b"", "The value is empty."),
    (b" \n", "The value is white space only."),
    (b"\xff\xfe\x00", "The value is not UTF-8; it begins with 0xFFFE00."),
    (b"\x00\x00\x00\x00\x07\x02\xc3\x28\x01", "The value is not UTF-8; it begins with 0x000000000702C328."),
    (b'\xef\xbb\xbf{"id": 1}', "The value begins with a byte order mark."),
    (b'[{"id": 1}]', 'The value is a JSON array, not an object: [{"id": 1}].'),
    (b" 7", "The value is a JSON scalar, not an object: 7."),
    (b'"text"', 'The value is a JSON scalar, not an object: "text".'),
    (b"null", "The value is a JSON scalar, not an object: null."),
    (b"no json", "The value is broken JSON; it begins with no json."),
    (b'{"id": 1', 'The value is broken JSON; it begins with {"id": 1.'),
    (b'{"id": 1,}', 'The value is broken JSON; it begins with {"id": 1,}.'),
    (b"a\x00b" + b"c" * 100, "The value is broken JSON; it begins with a\ufffdb" + "c" * 77 + "…."),
    (b'{"id": 1} {"id": 2}', "The value goes on after its first JSON object."),
    (b'{"id": 1},{"id": 2}', "The value goes on after its first JSON object."),
    (b'{"id": 1}\n{"id": 2}\n', "The value goes on after its first JSON object."),
    (b'{"id": 1}}', "The value goes on after its first JSON object."),
    (b'{"id": 1}],[{"id": 2}', "The value goes on after its first JSON object."),
    (b'{"id": 1},0],[{"id": 2}', "The value goes on after its first JSON object."),
    (b'{"id": 1}] and more {}', "The value goes on after its first JSON object."),
    (
        b'{"id": "x", "id": 1}',
        "The value is not strict JSON: the field id occurs twice.",
    ),
]


def test_invalid_json_object_is_refused_with_reason(records: Records) -> None:
    decoded = decode_json(records([value for value, _ in NOT_JSON]), columns("id bigint"))
    assert verdicts(decoded) == [("not_json", message) for _, message in NOT_JSON]


@pytest.mark.parametrize(
    "value", [b'{"id": 1}', b' \r\n\t{"id": 1, "l": [{"a": [1]}, {"b": "}],[{"}]}\n', b'{"id":1 }']
)
def test_one_json_object_is_one(value: bytes, records: Records) -> None:
    decoded = decode_json(records([value]), columns("id bigint"))
    assert [(r.decoded.id, r.error_class, r.error_message) for r in decoded.collect()] == [(1, None, None)]


WRONG_TYPE = [
    ('{"id": "seven"}', 'Column id (bigint) got "seven".'),
    ('{"id": 1, "n": "abc", "t": "soon"}', 'Column n (int) got "abc". Column t (timestamp) got "soon".'),
    ('{"n": 99999999999, "id": null}', "Column n (int) got 99999999999."),
    ('{"n": 3.0}', "Column n (int) got 3.0."),
    ('{"n": true, "d": 123456.5}', "Column n (int) got true. Column d (decimal(4,2)) got 123456.5."),
    ('{"n": ""}', 'Column n (int) got "".'),
    ('{"n": {"a": 1}}', 'Column n (int) got {"a":1}.'),
    ('{"n": "a\\n\\"b"}', 'Column n (int) got "a\\n\\"b".'),
    ('{"n": "' + "ü" * 200 + '"}', 'Column n (int) got "' + "ü" * 79 + "…."),
    ('{"s": {"b": "x", "c": "kept"}, "n": 1}', 'Column s (struct<b:int,c:string>) got {"b":"x","c":"kept"}.'),
    ('{"s": 5}', "Column s (struct<b:int,c:string>) got 5."),
    ('{"l": [1, "x"], "s": {"b": 1}}', 'Column l (array<int>) got [1,"x"].'),
    ('{"l": [], "m": {"k": {"y": "q"}}}', 'Column m (map<string,struct<y:int>>) got {"k":{"y":"q"}}.'),
]


def test_type_error_names_columns_and_shows_values(records: Records) -> None:
    schema = columns(
        "id bigint, n int, t timestamp, d decimal(4,2), s struct<b: int, c: string>, l array<int>, "
        "m map<string, struct<y: int>>, text string"
    )
    decoded = decode_json(records([text.encode() for text, _ in WRONG_TYPE]), schema)
    assert verdicts(decoded) == [("wrong_type", f"{message} {ANOTHER_TYPE}") for _, message in WRONG_TYPE]


ODD = ["a.b", "a b", 'a"b', "a'b", "a`b", "a[0]", "$", "ü", "a\\b", "parsed", "value", "%s"]


def test_odd_field_names_become_columns(records: Records) -> None:
    schema = T.StructType([T.StructField(name, T.IntegerType(), False) for name in ODD])
    good = dict.fromkeys(ODD, 5)
    values = [good, *[{**good, name: "x"} for name in ODD], *[{**good, name: None} for name in ODD]]
    decoded = decode_json(records([json.dumps(value).encode() for value in values]), schema)
    assert verdicts(decoded) == [
        (None, None),
        *[("wrong_type", f'Column {name} (int) got "x". {ANOTHER_TYPE}') for name in ODD],
        *[("null_in_required_column", f"Required, but null or missing: {name}.") for name in ODD],
    ]
    (row,) = transformed(decoded, spec()).drop("_kafka").collect()
    assert row.asDict() == good


def test_many_wrong_columns_make_no_endless_message(records: Records) -> None:
    schema = columns(", ".join(f"c{number} int" for number in range(200)))
    value = json.dumps({f"c{number}": "x" * 60 for number in range(200)}).encode()
    ((error_class, message),) = verdicts(decode_json(records([value]), schema))
    assert error_class == "wrong_type"
    assert message is not None
    assert message.startswith('Column c0 (int) got "xxx')
    assert len(message) == 2000


def test_nulls_in_required_columns_are_named_exactly(records: Records) -> None:
    schema = columns("id bigint not null, n int, s struct<a: int> not null, t string not null")
    decoded = decode_json(
        records([b'{"id": null, "s": {}, "t": ""}', b"{}", b'{"id": 1, "s": {"a": null}}', b'{"t": "x", "id": "x"}']),
        schema,
    )
    assert verdicts(decoded) == [
        ("null_in_required_column", "Required, but null or missing: id."),
        ("null_in_required_column", "Required, but null or missing: id, s, t."),
        ("null_in_required_column", "Required, but null or missing: t."),
        ("wrong_type", f'Column id (bigint) got "x". {ANOTHER_TYPE}'),
    ]


def test_field_names_of_inferred_columns_count_exactly(records: Records) -> None:
    decoded = decode_json(records([b'{"ID": 3}', b'{"ID": "x", "id": 4}']), columns("id bigint"), is_declared=False)
    assert [(r.decoded.id, r.error_class) for r in decoded.orderBy("offset").collect()] == [(None, None), (4, None)]


def test_a_value_over_the_limit_is_not_parsed(records: Records) -> None:
    fits = b'{"id": "\xc3\xbc"}'
    values = [fits, fits + b" ", b"\xff" * 30, None]
    decoded = decode_json(records(values), columns("id string not null"), max_record_bytes=len(fits))
    assert verdicts(decoded) == [
        (None, None),
        ("too_large", "The value has 13 bytes, the limit is 12."),
        ("too_large", "The value has 30 bytes, the limit is 12."),
        (None, None),
    ]
    # Whatever a value of that length would have become, there is nothing of it.
    assert [r.decoded and r.decoded.id for r in decoded.orderBy("offset").collect()] == ["ü", None, None, None]


def test_inferred_columns_keep_the_order_of_fields(records: Records) -> None:
    frame = records([b'{"z": 1, "a": {"y": "2026-01-02", "b": []}}', b"{", b'{"b": 2.5, "a": {"x": null}, "z": 2}'])
    ((label, shown),) = Json().inspect(frame).incoming()
    assert (label, shown.simpleString()) == ("the records", "struct<z:bigint,a:struct<y:string>,b:double>")


def test_headers_pass_through_decoding_unchanged(records: Records) -> None:
    headers = [None, [("a", b"1"), ("a", None), ("b", b"")], [], [("c", b"\xff")], None, [("d", b"2")]]
    frame = records([b"{}"] * len(headers))
    sent = frame.sparkSession.createDataFrame(
        list(enumerate(headers)), "offset bigint, headers array<struct<key: string, value: binary>>"
    )
    rows = decode_json(frame.drop("headers").join(sent, "offset").coalesce(1), columns("id bigint")).orderBy("offset")
    assert [row.headers and [tuple(header) for header in row.headers] for row in rows.collect()] == [
        headers[0], headers[1], None, *headers[3:],
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_dead_letters_have_offset_and_time(records: Records) -> None:
    decoded = decode_json(records([b"{}", b"x", None]), columns("id bigint not null"))
    before = datetime.now(UTC)
    letters = dead_letters_of(decoded, "run-1", topic_id="T1").orderBy("offset").collect()
    assert [f.name for f in dead_letters_of(decoded, "run-1").schema] == [
        "topic", "topic_id", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers",
        "error_class", "error_message", "run_id", "failed_at",
    ]  # fmt: skip
    assert [(r.topic, r.topic_id, r.partition, r.offset, r.run_id) for r in letters] == [
        ("t", "T1", 1, 0, "run-1"),
        ("t", "T1", 1, 1, "run-1"),
    ]
    assert [r.timestamp_type for r in letters] == ["CreateTime", "LogAppendTime"]
    for r in letters:
        assert abs(r.failed_at.astimezone(UTC) - before) < timedelta(minutes=1)
    for unknown in ("", None):
        assert {r.topic_id for r in dead_letters_of(decoded, "run-1", unknown).collect()} == {None}


@pytest.mark.exhaustive
def test_rows_have_the_id_of_their_topic(records: Records) -> None:
    decoded = decode_json(records([b'{"id": 1}']), columns("id bigint"))
    rows = transformed(decoded, spec(), "T1")
    assert rows.schema["_kafka"].dataType.names == [
        "topic", "topic_id", "partition", "offset", "timestamp", "timestamp_type", "key", "headers",
    ]  # fmt: skip
    assert [r._kafka.topic_id for r in rows.collect()] == ["T1"]
    for unknown in ("", None):
        assert [r._kafka.topic_id for r in transformed(decoded, spec(), unknown).collect()] == [None]


def test_dead_letters_become_the_records_they_were(records: Records) -> None:
    source = records([b"{}", b"\xff", b'{"id": "x"}', b'{"id": 7}', None]).withColumn(
        "timestampType", F.when(F.col("offset") == 2, F.lit(-1)).otherwise(F.col("timestampType"))
    )
    decoded = decode_json(source, columns("id bigint not null"))
    back = records_from_dead_letters(dead_letters_of(decoded, "run-1", "T1"))
    kinds = [(f.name, f.dataType.simpleString()) for f in source.schema]
    assert [(f.name, f.dataType.simpleString()) for f in back.schema] == [*kinds, ("topic_id", "string")]
    expected = source.filter("offset < 3").withColumn("topic_id", F.lit("T1"))
    assert back.orderBy("offset").collect() == expected.orderBy("offset").collect()

    # With columns that take them, and into another topic's hands: each still knows which topic it came from.
    again = decode_json(back, columns("id string"))
    rows = transformed(again, spec(), "T2").orderBy("_kafka.offset").collect()
    assert [(r.id, r._kafka.topic_id, r._kafka.offset, r._kafka.timestamp_type) for r in rows] == [
        (None, "T1", 0, "CreateTime"),
        ("x", "T1", 2, None),
    ]
    ((letter),) = dead_letters_of(again, "run-2", "T2").collect()
    assert (letter.topic_id, letter.offset, letter.value, letter.run_id) == ("T1", 1, b"\xff", "run-2")


def test_dead_letters_of_an_older_table_are_decoded_too(records: Records) -> None:
    decoded = decode_json(records([b"x"]), columns("id bigint"))
    letters = dead_letters_of(decoded, "run-1", "T1").drop("topic_id", "timestamp_type", "failed_at")
    (record,) = records_from_dead_letters(letters).collect()
    assert (record.value, record.offset, record.timestampType, record.topic_id) == (b"x", 0, -1, None)


# Met in test_formats and test_fuzz.
OF_OTHER_FORMATS = {"not_text", "no_schema_id", "unknown_schema", "malformed", "bad_key", "too_deep", "undecodable"}
OF_CHANGES = {
    "not_a_change", "no_key", "no_old_key", "no_order", "other_key", "value_not_sent", "key_changed", "several_rows",
}  # fmt: skip
OF_RULES = {"rule:<name>"}
OF_ROUTES = {"unmatched"}


def test_each_class_has_a_meaning(records: Records) -> None:
    values = [b"x", b'{"id": "x"}', b"{}", b'{"id": 1, "n": 2222222222}']
    decoded = decode_json(records(values), columns("id bigint not null"), max_record_bytes=20)
    met = {error_class for error_class, _ in verdicts(decoded)}
    assert met == set(ERROR_CLASSES) - OF_OTHER_FORMATS - OF_CHANGES - OF_RULES - OF_ROUTES
    assert all(meaning.endswith(".") and "\n" not in meaning for meaning in ERROR_CLASSES.values())
