"""What bytes seem to be, which records are looked at, and that the YAML written is accepted and overwrites nothing."""

import io
import json
import math
import re
import string
import textwrap
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import yaml
from dagster import BetaWarning
from dagster.components.testing import create_defs_folder_sandbox
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from kafka_lake.cli.commands.discover import discovered_blocks, written_lines
from kafka_lake.cli.main import app
from kafka_lake.common.offsets import TopicIdentity, Watermarks
from kafka_lake.config.formats import FORMATS
from kafka_lake.discovery.discover import Discovered, described, document, documents, write
from kafka_lake.discovery.guess import Column, Guess, Schemas, columns_of, guess, json_value
from kafka_lake.engine.interop import ddl
from kafka_lake.errors import ConfigurationError, RegistryError, UnknownSchemaError
from kafka_lake.kafka.records import Record, Sample, shares
from kafka_lake.kafka.registry import SchemaRegistry, WriterSchema
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.spec.topic_table import TopicTable

ALONE = Schemas(None)
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
LATER = {
    **ORDER,
    "fields": [{"name": "ID", "type": "long"}, {"name": "tags", "type": {"type": "array", "items": "int"}}],
}
PROTO = 'syntax = "proto3"; message Outer { int64 id = 1; message Inner { string name = 1; } }'
KNOWN = {
    7: WriterSchema("AVRO", json.dumps(ORDER), id=7),
    8: WriterSchema("AVRO", json.dumps(LATER), id=8),
    9: WriterSchema("PROTOBUF", PROTO, id=9),
    10: WriterSchema("JSON", '{"type": "object", "properties": {"total": {"type": "number"}}}', id=10),
    11: WriterSchema("AVRO", '{"type": "array", "items": "null"}', id=11),
    12: WriterSchema("AVRO", json.dumps({"type": "record", "name": "Envelope", "fields": [
        {"name": "before", "type": ["null", {**ORDER, "name": "Value"}]}, {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"}, {"name": "source", "type": {**ORDER, "name": "Source"}},
    ]}), id=12),
}  # fmt: skip


def framed(number: int, payload: bytes = b"\x02") -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + payload


def known() -> Schemas:
    asked: list[int] = []

    def by_id(number: int) -> WriterSchema:
        assert number not in asked, "asked for twice"
        asked.append(number)
        if number not in KNOWN:
            raise UnknownSchemaError(f"Schema id {number}: there is none.")
        return KNOWN[number]

    return Schemas(SimpleNamespace(by_id=by_id))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("contents", "format_", "evidence"),
    [
        ([b"{}", b' {"a": 1}\n'], "json", "2 of 2 sampled values are JSON objects"),
        ([b'{"a": 1}'], "json", "1 of 1 sampled values is a JSON object"),
        ([b"{}"] * 18 + [b"x", b"y"], "json", "18 of 20 sampled values are JSON objects, 2 are text"),
        ([b"{}"] * 3 + [b"x"] * 2, "json", "3 of 5 sampled values are JSON objects, 2 are text"),
        ([b"{}"] * 2 + [b"x"] * 2, "string", "2 of 4 sampled values are JSON objects, 2 are text"),
        ([b"{}", b"\xff"], "bytes", "1 of 2 sampled values is a JSON object, 1 is binary"),
        ([b"[1]", b"[]"], "string", "2 of 2 sampled values are JSON arrays"),
        ([b"1", b'"a"', b"null", b"", b"caf\xc3\xa9 \t\r\n"], "string", "5 of 5 sampled values are text"),
        ([b"\xef\xbb\xbf{}"], "string", "1 of 1 sampled values is text"),
        ([b'{"a": 1, "a": 2}', b'{"a": NaN}', b"{} {}"], "string", "3 of 3 sampled values are text"),
        ([b"[" * 100_000], "string", "1 of 1 sampled values is text"),
        ([b"\x00\x00\x00\x2a", b"\x00\x00\x00\x2b"], "bytes", "2 of 2 sampled values are binary, 4 bytes each"),
        ([b"\x80", b"\x80\x80"], "bytes", "2 of 2 sampled values are binary"),
        ([b"a"] * 19 + [b"\xff"], "string", "19 of 20 sampled values are text, 1 is binary"),
        # A long since 1970 in milliseconds.
        (
            [(1_700_000_000_000 + i).to_bytes(8, "big") for i in range(2)],
            "bytes",
            "2 of 2 sampled values are binary, 8 bytes each",
        ),
    ],
)
def test_what_stands_for_itself(contents: list[bytes], format_: str, evidence: str) -> None:
    found = guess(contents, "value", ALONE)
    assert (found.format, found.evidence) == (format_, evidence)
    assert guess(contents, "key", ALONE).evidence == evidence.replace("values", "keys")


def test_strays_are_told_for_what_becomes_of_them() -> None:
    assert guess([b"{}"] * 19 + [b"x"], "value", ALONE).remarks == ("One of them would be a dead letter.",)
    assert guess([b"a"] * 28 + [b"\xff"] * 2, "value", ALONE).remarks == ("2 of them would be dead letters.",)
    assert guess([b"{}"] * 19 + [b"x"], "key", ALONE).remarks == ()
    assert guess([], "value", ALONE).format is None


@pytest.mark.parametrize(
    ("contents", "format_", "evidence", "columns"),
    [
        ([framed(7)] * 2, "avro", "2 of 2 sampled values are Avro with schema id 7", "id bigint"),
        # What the newest schema says of a field counts; names that differ in case only are one column.
        (
            [framed(7), framed(8)],
            "avro",
            "2 of 2 sampled values are Avro with schema ids 7, 8",
            "ID bigint, tags array<int>",
        ),
        ([framed(9, b"\x00\x08\x01")], "protobuf", "1 of 1 sampled values is Protobuf with schema id 9", "id bigint"),
        # Message indexes [0, 0]: the message nested in the first.
        ([framed(9, b"\x04\x00\x00")], "protobuf", "1 of 1 sampled values is Protobuf with schema id 9", "name string"),
        ([framed(10, b"{}")], "json_schema", "1 of 1 sampled values is JSON Schema with schema id 10", "total double"),
        (
            [framed(7), framed(7), framed(9, b"\x00")],
            "confluent",
            "2 of 3 sampled values are Avro with schema id 7, 1 is Protobuf with schema id 9",
            "id bigint",
        ),
        (
            [framed(7)] * 10 + [b"x"],
            "avro",
            "10 of 11 sampled values are Avro with schema id 7, 1 is something else",
            "id bigint",
        ),
    ],
)
def test_what_is_by_a_registry_s_schemas(contents: list[bytes], format_: str, evidence: str, columns: str) -> None:
    found = guess(contents, "value", known())
    assert (found.format, found.evidence) == (format_, evidence)
    assert ", ".join(column.ddl for column in found.columns) == columns


def test_a_schema_that_no_table_can_have_is_told_of() -> None:
    for content, said in ((framed(11), "chema id 11"), (framed(9, b"\x80"), "Schema id 9: No message indexes: 80.")):
        found = guess([content], "value", known())
        assert found.columns == ()
        assert said in found.remarks[0]


def test_a_wire_format_that_nobody_knows_is_only_likely() -> None:
    likely = [framed(1234, b"abcdef"), framed(5678, b"abc")]
    found = guess(likely, "value", ALONE)
    assert (found.format, found.evidence) == (
        "confluent",
        "2 of 2 sampled values look like a registry's wire format, schema ids 1234, 5678",
    )
    assert "KAFKA_LAKE_SCHEMA_REGISTRY_URL" in found.remarks[0]
    found = guess([framed(5, b'{"id": 1}')], "value", ALONE)
    assert (found.format, found.columns) == ("json_schema", (Column("id", "bigint"),))
    schemas = known()
    for part in ("value", "key"):
        found = guess(likely, part, schemas)
        assert (found.format, found.remarks) == ("bytes", ("The registry doesn't have these schema ids.",))
    for not_likely in (framed(2**31, b"abcdef"), framed(0, b"abcdef"), framed(1234, b"abc"), framed(1234, b"")):
        assert guess([not_likely], "value", ALONE).format == "bytes"


def test_what_glues_serializers_wrote_is_likely() -> None:
    written = b"\x03\x000123456789abcdefpayload"
    found = guess([written], "value", ALONE)
    version, registry = UUID(bytes=written[2:18]), SchemaRegistry({"url": "http://127.0.0.1:1"})
    assert found.format == "confluent"
    assert found.evidence == f"1 of 1 sampled values looks like a registry's wire format, schema version {version}"
    assert "set KAFKA_LAKE_SCHEMA_REGISTRY_URL=glue://" in guess([written], "value", Schemas(registry)).remarks[0]
    for other in (b"\x03\x01" + b"0123456789abcdef", b"\x03\x00" + b"0123456789abcde"):
        assert guess([other], "value", ALONE).format == "bytes"


def test_ids_that_a_registry_cannot_look_up_stop_no_others() -> None:
    registry = SchemaRegistry({"url": "http://127.0.0.1:1"})

    def by_id(id_: int | str) -> WriterSchema:
        return KNOWN[id_] if isinstance(id_, int) else registry.by_id(id_)

    schemas = Schemas(SimpleNamespace(by_id=by_id))  # type: ignore[arg-type]
    glue = b"\x03\x000123456789abcdefpayload"
    assert "glue://" in guess([glue], "value", schemas).remarks[0]
    assert guess([framed(7)], "value", schemas).format == "avro"
    found = guess([framed(7)] * 10 + [glue], "value", schemas)
    assert (found.format, found.remarks) == ("avro", ("One of them would be a dead letter.",))


def test_binary_values_with_different_uuids_are_no_wire_format() -> None:
    contents = [b"\x01" + bytes([n] * 16) + b"content" for n in range(1, 5)]
    assert guess(contents, "value", ALONE).format == "bytes"
    assert guess(contents * 2, "value", ALONE).format == "confluent"


@pytest.mark.parametrize("kind", ["confluent", "apicurio"])
def test_headers_count_by_the_kind_of_the_registry(kind: str) -> None:
    def by_id(id_: int | str) -> WriterSchema:
        return KNOWN[{7: 7, "globalId 9": 8}[id_]]

    record = Record(0, 0, 0, None, framed(7), 10, [("apicurio.value.globalId", (9).to_bytes(8))])
    now = Watermarks(TopicIdentity("c", "t", "orders"), {0: 0}, {0: 1})
    schemas = Schemas(SimpleNamespace(by_id=by_id, kind=kind))  # type: ignore[arg-type]
    found = described(Discovered("orders"), now, Sample((record,), 1, True), schemas)
    assert ("schema id 7" if kind == "confluent" else "schema globalId 9") in found.value.evidence


def test_a_registry_that_gives_no_answer_is_asked_but_once(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SchemaRegistry({"url": "http://127.0.0.1:1"})
    schemas = Schemas(registry)
    assert guess([framed(7)], "value", schemas).format == "confluent"
    assert "can't be reached" in schemas.trouble

    def asked(_: int) -> None:
        raise RegistryError("asked again")

    monkeypatch.setattr(registry, "by_id", asked)
    found = guess([framed(8)], "key", schemas)
    assert found.remarks == (schemas.trouble,)
    assert "asked again" not in schemas.trouble

    nowhere = Schemas(SchemaRegistry({"url": "http://127.0.0.1:1", "ssl.ca.location": "/nowhere.pem"}))
    assert "/nowhere.pem" in guess([framed(7)], "value", nowhere).remarks[0]


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(), st.binary().map(lambda b: b"\x00\x00\x00\x00" + b), st.text().map(str.encode))))
def test_no_bytes_are_beyond_guessing(contents: list[bytes]) -> None:
    for schemas in (ALONE, Schemas(SimpleNamespace(by_id=lambda n: KNOWN[7 + n % 5]))):  # type: ignore[arg-type]
        found = guess(contents, "value", schemas)
        assert found.format in FORMATS if contents else found.format is None
        if contents:
            counts = [
                int(n) for n in re.findall(r"(\d+)(?: of \d+ sampled values)? (?:is|are|looks?) ", found.evidence)
            ]
            assert sum(counts) == len(contents)
        loads(document(Discovered("t", value=found, key=found)))


TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.dictionaries(TEXTS, JSON, max_size=4), min_size=1, max_size=4))
@example([{"b": None}, {"a": False, "b": False}])
def test_columns_of_any_objects(objects: list[dict[str, Any]]) -> None:
    contents = [json.dumps(item).encode() for item in objects]
    parsed = [json_value(content) for content in contents]
    for element, content, value in zip(objects, contents, parsed, strict=True):
        assert isinstance(value, dict) is (_finite(element) and _is_text(content))
    columns = columns_of(value for value in parsed if isinstance(value, dict))
    names = [column.name for column in columns]
    assert len(set(names)) == len(names)
    assert set(names) <= {name for content in contents for name in json.loads(content)}
    assert columns == columns_of([value for value in parsed if isinstance(value, dict)] * 2)


def _finite(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _is_text(content: bytes) -> bool:
    """Return whether JSON has no half of a surrogate pair, which no UTF-8 can hold."""
    try:
        json.dumps(json.loads(content), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["9223372036854775807", "-9223372036854775808"], "bigint"),
        (["1", "9223372036854775808"], "double"),
        (["1", "1.5"], "double"),
        (["1e400"], "string"),
        (["0.1234567890123456"], "double"),
        (["0.12345678901234567890"], "double"),
        (["1" * 5000], "string"),
        (["1.5", "9223372036854775808"], "double"),
        (["true", "null"], "boolean"),
        (["true", "1"], "string"),
        (['"a"', "1"], "string"),
        (["{}", "null", "[]"], "string"),
        (['{"a": 1}', '{"b": {"c": null, "d": "x"}}'], "struct<a:bigint,b:struct<d:string>>"),
        (["[]", "[1, 2.5]", "[null]"], "array<double>"),
        (['[{"a b": 1}]'], "array<struct<`a b`:bigint>>"),
        (["[" * 30 + "1" + "]" * 30], 19 * "array<" + "string" + 19 * ">"),
        (["null"], None),
        (["{}"], None),
        (["[]"], None),
    ],
)
def test_types_of_json(values: list[str], kind: str | None) -> None:
    columns = columns_of(json_value(b'{"f": %b}' % value.encode()) for value in values)
    assert [column.type for column in columns] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("texts", "time"),
    [
        (["2026-01-02", "2026-12-31"], "date"),
        (["2026-01-02T03:04:05Z", "2026-01-02 03:04:05.123456+01:00"], "timestamp"),
        (["2026-01-02T03:04:05.1"], "timestamp_ntz"),
        (["2026-01-02", "2026-01-02T03:04:05Z"], ""),
        (["2026-01-02", "soon"], ""),
        (["2026-02-30"], ""),
        (["2026-01-02T03:04:05.123456789Z"], ""),
        (["20260102"], ""),
    ],
)
def test_text_that_is_a_time_throughout(texts: list[str], time: str) -> None:
    (column,) = columns_of({"at": text} for text in texts)
    assert (column.type, column.time) == ("string", time)


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 200), st.integers(0, 1000), max_size=50), st.integers(1, 1000))
def test_shares_are_as_even_as_can_be(available: dict[int, int], count: int) -> None:
    given_ = shares(available, count)
    assert sum(given_.values()) == min(count, sum(available.values()))
    assert all(0 < share <= available[p] for p, share in given_.items())
    most = max(given_.values(), default=0)
    assert all(given_.get(p, 0) >= min(held, most - 1) for p, held in available.items())


def described_by(records: tuple[Record, ...], low: int, end: int, offsets: int, complete: bool = True) -> Discovered:
    now = Watermarks(TopicIdentity("c", "t", "orders"), {0: low, 1: 5}, {0: end, 1: 5})
    return described(Discovered("orders"), now, Sample(records, offsets, complete), ALONE)


def test_what_a_sample_says_of_its_topic() -> None:
    records = tuple(
        Record(0, i, 0, b"k" if i else None, b"{}" if i < 3 else None, size) for i, size in enumerate((2, 4, 4, 6))
    )
    found = described_by(records, 10, 110, 4)
    assert (found.partitions, found.offsets, found.sampled, found.tombstones) == (2, 100, 4, 1)
    assert found.estimated_bytes == 400
    assert found.value.evidence == "3 of 3 sampled values are JSON objects"
    assert found.key.evidence == "3 of 3 sampled keys are text"
    reported = {
        described_by((), 7, 7, 0).value.evidence,
        described_by((), 0, 70, 70).value.evidence,
        described_by((), 0, 200_000, 100_000).value.evidence,
        described_by((), 0, 70, 20, complete=False).value.evidence,
    }
    assert reported == {
        "the topic is empty",
        "no value at its 70 offsets: tombstones, aborted or compacted away",
        "no value at the newest 100,000 offsets: tombstones, aborted or compacted away",
        "no value arrived in time",
    }


def loads(text: str) -> KafkaTopic:
    """Return the component of a document that has to be one, all but Dagster's part."""
    parsed = yaml.safe_load(text)
    assert parsed["type"] == "kafka_lake.KafkaTopic"
    return KafkaTopic(**parsed["attributes"])


def uncommented(text: str) -> list[str]:
    """Return the document once with each of the settings that it suggests."""
    head, *suggestions = text.split("\n\n  # To ")
    lines = [suggestion.partition("\n")[2] for suggestion in suggestions]
    if "without infer_timestamps" in text:
        head = head.replace("format:\n    type: json\n    infer_timestamps: true", "")
    return [f"{head.rstrip()}\n{textwrap.indent(textwrap.dedent(line.replace('  # ', '')), '  ')}" for line in lines]


OBJECTS = [
    json.dumps({"id": i, "at": "2026-01-01T00:00:00Z", "a b": {"é: #": [1.5]}, "wide": {f"f{k}": k for k in range(40)}})
    for i in range(3)
]
VALUES = guess([text.encode() for text in OBJECTS], "value", ALONE)


def test_a_document_is_accepted_by_dagster_as_it_is_and_with_each_suggestion() -> None:
    text = document(Discovered("shop.Orders", value=VALUES, key=guess([b'{"id": 1}'], "key", ALONE)))
    assert max(map(len, text.splitlines())) < 1000
    plain = loads(text)
    assert (plain.topic, plain.format.type, plain.table, plain.key) == ("shop.Orders", "json", None, None)
    assert plain.topic_table().infer_timestamps
    assert "# Text that is a timestamp in every sampled record becomes a timestamp: at." in text
    declared, keyed = [loads(item) for item in uncommented(text)]
    assert not declared.topic_table().infer_timestamps
    assert str(declared.topic_table().schema).startswith(
        "id bigint, at timestamp, `a b` struct<`é: #`:array<double>>, wide struct<f0:bigint,"
    )
    assert (keyed.topic_table().key_format, keyed.topic_table().key_schema) == ("json", "id bigint")
    with warnings.catch_warnings(), create_defs_folder_sandbox() as sandbox:
        warnings.simplefilter("ignore", BetaWarning)
        (planned,) = documents([Discovered("shop.Orders", value=VALUES)], [], sandbox.defs_folder_path)
        write({planned.path: planned.text})
        with sandbox.load_component_and_build_defs(planned.path.parent) as (component, _):
            assert isinstance(component, KafkaTopic)
            assert component.topic_table().identifier == tuple(planned.table.split("."))


DEBEZIUM = {"before": None, "after": {"id": 1}, "op": "c", "source": {"connector": "mysql"}, "ts_ms": 1}
MAXWELL = {"database": "d", "table": "t", "type": "insert", "ts": 1, "data": {"id": 1}}
CANAL = {"database": "d", "table": "t", "type": "INSERT", "isDdl": False, "data": [{"id": "1"}], "pkNames": ["id"]}


@pytest.mark.parametrize(
    ("values", "envelope"),
    [
        ([DEBEZIUM] * 2, "debezium"),
        ([{"schema": {"type": "struct"}, "payload": DEBEZIUM}], "debezium"),
        ([MAXWELL], "maxwell"),
        ([CANAL], "canal"),
        ([DEBEZIUM, {"id": 1}], ""),
        ([{"op": "c", "after": {}}], ""),
    ],
)
def test_envelopes_of_changes_suggest_upserts(values: list[Any], envelope: str) -> None:
    found = Discovered("t", value=guess([json.dumps(value).encode() for value in values], "value", ALONE))
    assert found.value.envelope == envelope
    reported = " ".join(shown(found).split())
    assert (f"format: envelope: {envelope} with write: upsert makes" in reported) is bool(envelope)
    assert loads(document(found)).topic_table().write == "append"
    if envelope:
        (suggested,) = (loads(document_text).topic_table() for document_text in uncommented(document(found)))
        assert (suggested.write, suggested.envelope) == ("upsert", envelope)


def test_debeziums_avro_suggests_upserts() -> None:
    found = Discovered("t", value=guess([framed(12)], "value", known()))
    (suggested,) = (loads(document_text).topic_table() for document_text in uncommented(document(found)))
    assert (suggested.format, suggested.write, suggested.envelope) == ("avro", "upsert", "debezium")


def test_times_are_proposed_only_where_text_is_one_in_every_record() -> None:
    for texts, proposed in ((["2026-01-02T03:04:05Z", "2026-01-03 00:00:00Z"], True), (["2026-01-02", "soon"], False)):
        found = Discovered("t", value=guess([json.dumps({"at": text}).encode() for text in texts], "value", ALONE))
        assert loads(document(found)).topic_table().infer_timestamps is proposed
        assert ("timestamps as text: at; infer_timestamps" in shown(found)) is proposed
    columns = (Column("at", "string", "timestamp"),)
    plain = loads(document(Discovered("t", value=Guess("json_schema", "so", columns))))
    assert not plain.topic_table().infer_timestamps


def test_columns_come_in_the_order_of_the_records_fields() -> None:
    lines = [b'{"z": null, "a": 1, "m": {"y": 1, "b": 2}}', b'{"a": 2, "new": 1, "z": "text", "m": {"c": 1, "y": 2}}']
    found = guess(lines, "value", ALONE)
    assert ", ".join(column.ddl for column in found.columns) == (
        "z string, a bigint, m struct<y:bigint,b:bigint,c:bigint>, new bigint"
    )


@pytest.mark.parametrize("format_", [None, *FORMATS])
def test_a_document_of_every_format_is_accepted(format_: Any) -> None:
    text = document(Discovered("t", value=Guess(format_, "so it seems"), key=Guess(format_, "so it seems")))
    assert loads(text).format.type == (format_ or "json")
    for document_text in uncommented(text):
        assert loads(document_text).topic_table().key_format == format_


@pytest.mark.parametrize("topic", ["1e3", "007", "null", "on", "2026-01-01", "-", "1_000", "0x1F", ".a", "~"])
def test_a_topic_s_name_stays_a_name(topic: str) -> None:
    assert yaml.safe_load(document(Discovered(topic)))["attributes"]["topic"] == topic


@settings(deadline=None)
@given(TEXTS.filter(bool), st.sampled_from(["json", "avro"]))
@example("\n", "json")
def test_no_name_of_a_field_breaks_a_document(name: str, format_: Any) -> None:
    columns = (Column(name, ddl(json_kind(name))), Column("id", "bigint", "date"))
    guessed = Guess(format_, "so", columns, (f"A remark on {name}.",))
    text = document(Discovered("t", value=guessed, key=guessed))
    assert loads(text).topic == "t"
    for document_text in uncommented(text):
        assert loads(document_text).topic == "t"


def json_kind(name: str) -> Any:
    from pyspark.sql import types as T

    return T.StructType([T.StructField(name, T.LongType())])


def test_nothing_is_written_if_one_document_can_t_be(tmp_path: Path) -> None:
    good = Discovered("orders", value=VALUES)
    specs = [
        TopicTable("pizzas", "lake", "all_pizzas"),
        TopicTable("shop.customers", "lake", "customers", write="history"),
    ]
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "defs.yaml").write_text("mine")
    refused = {
        "topic pizzas already has the table lake.all_pizzas": Discovered("pizzas", ("lake.all_pizzas",)),
        "topics all-pizzas and pizzas would have the same table lake.all_pizzas": Discovered("all-pizzas"),
        "topics customers and shop.customers would have the same table lake.customers": Discovered("customers"),
        "topics Orders and orders would have the same table lake.orders": Discovered("Orders"),
        f"{tmp_path}/there/defs.yaml already exists": Discovered("there"),
        "Nothing was written: no such topic": Discovered("gone", error="no such topic"),
    }
    for said, bad in refused.items():
        with pytest.raises(ConfigurationError, match=said):
            documents([good, bad], specs, tmp_path)
    planned = documents([good], specs, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    write({planned[0].path: planned[0].text})
    with pytest.raises(ConfigurationError, match=r"orders/defs\.yaml can't be written: File exists"):
        write({planned[0].path: "other"})
    assert planned[0].path.read_text() == planned[0].text
    assert (tmp_path / "there" / "defs.yaml").read_text() == "mine"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="Not a directory"):
        write({tmp_path / "file" / "orders" / "defs.yaml": ""})


def shown(*found: Discovered, whole: bool = False) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(*discovered_blocks(found, whole))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_is_shown_fits_the_terminal_and_never_commands_it() -> None:
    evil = "[red]\x1b[2J\n"
    columns = tuple(Column(f"{evil}{i}", f"struct<{'x' * 60}>") for i in range(20))
    guessed = Guess("json", "20 of 20 sampled values are JSON objects", columns, (evil,))
    long_name = ".".join(string.ascii_lowercase * 9)[:249]
    text = shown(
        Discovered(long_name, ("lake.some_table",), 10_000, 10**15, "compact,delete", 23, 3, 10**15, guessed, guessed),
        Discovered("gone", error=evil),
    )
    assert max(map(len, text.splitlines())) == 100
    assert "\x1b" not in text
    assert text.count("[red]") == 2 * 12 + 2 + 1
    for part in (
        "10,000 partitions",
        "1,000,000,000,000,000 offsets",
        "≈ 1.0 PB",
        "3 of 23 sampled records are tombstones",
    ):
        assert part in text
    assert "compacted" in text
    assert "… 8 more" in text
    assert "… 8 more" not in shown(Discovered("t", value=guessed), whole=True)
    assert "keys" not in shown(Discovered("t", value=guessed))


def test_next_steps_name_the_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = written_lines(documents([Discovered("orders"), Discovered("clicks")], [], tmp_path))
    assert lines[:2] == [
        "orders/defs.yaml: topic orders becomes table lake.orders",
        "clicks/defs.yaml: topic clicks becomes table lake.clicks",
    ]
    assert any("kafka-lake schema orders" in line for line in lines)
    assert any("kafka-lake reload" in line for line in lines)


def test_write_without_a_topic_is_refused() -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["discover", "--write"])
    assert result.exit_code == 1
    assert "kafka-lake discover orders --write" in result.output
    assert CliRunner().invoke(app, ["discover", "--sample", "0"]).exit_code == 2
