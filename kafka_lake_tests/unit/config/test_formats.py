"""The groups ``format:`` and ``key:``."""

import pytest

from kafka_lake.config.formats import FORMATS
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.unit.config import refusal, spec


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_may_be_its_name_alone(name: str) -> None:
    assert (
        spec(f"topic: a\nformat: {name}") == spec(f"topic: a\nformat: {{type: {name}}}") == TopicTable("a", format=name)
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (
            "{type: json, infer_timestamps: true, timestamp_unit: ms}",
            {"infer_timestamps": True, "timestamp_unit": "ms"},
        ),
        ("{type: avro, schema: order.avsc}", {"schema_file": "order.avsc"}),
        ("{type: avro, subject: s}", {"subject": "s"}),
        ("{type: avro, schema: registry}", {}),
        ("{type: protobuf, schema: 'a.proto#shop.A'}", {"schema_file": "a.proto", "message": "shop.A"}),
        ("{type: confluent, subject: s}", {"subject": "s"}),
    ],
)
def test_settings_of_a_format_arrive(text: str, fields: dict[str, object]) -> None:
    name = text.split()[1].strip(",}")
    assert spec(f"topic: a\nformat: {text}") == TopicTable("a", **{"format": name, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["debezium", "maxwell", "canal"])
def test_an_envelope_is_that_of_tables_with_keys(name: str) -> None:
    text = f"topic: a\nformat: {{type: json, envelope: {name}}}"
    assert spec(f"{text}\ntable: {{write: upsert}}").envelope == name
    # Beside a table with keys, one without has the changes themselves.
    tables = "tables: [{name: rows, write: upsert}, {name: changes}]"
    assert [table.envelope for table in spec(f"{text}\n{tables}").tables] == [name, "none"]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("string", {"key_format": "string"}),
        ("{format: string, column: id}", {"key_format": "string", "key_column": "id"}),
        ("{format: json, schema: id bigint}", {"key_format": "json", "key_schema": "id bigint"}),
        ("avro", {"key_format": "avro"}),
        ("confluent", {"key_format": "confluent"}),
    ],
)
def test_settings_of_a_key_arrive(text: str, fields: dict[str, str]) -> None:
    assert spec(f"topic: a\nkey: {text}") == TopicTable("a", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("format: {type: json, schema: a.avsc}", "format: schema: there is no such setting"),
        ("format: {type: avro, message: A}", "format: message: there is no such setting"),
        ("format: {type: string, subject: s}", "format: subject: there is no such setting"),
        ("format: {type: protobuf, envelope: debezium}", "format: envelope: there is no such setting"),
        ("format: {type: avro, envelope: maxwell}", "format: envelope: Input should be 'debezium'"),
        ("format: {type: avro, compatibility: full}", "format: compatibility: there is no such setting"),
        ("format: {type: avro, schema: a.avsc, subject: s}", "format: subject: is for schema: registry"),
        ("format: {type: avro, schema: a.avsc, envelope: debezium}", "format: envelope: needs schema: registry"),
        ("format: {type: json, timestamp_unit: m}", "format: timestamp_unit: Input should be 's'"),
        ("format: 3", "format: type: is missing"),
        ("format: variant", "format: 'variant' isn't known"),
        ("key: json", "key: schema: is missing"),
        ("key: {format: json, schema: id intt}", "key: schema: column 'id intt' has unknown type 'intt'"),
        ("key: {format: avro, schema: key.avsc}", "key: schema: there is no such setting"),
        ("key: {format: string, schema: id int}", "key: schema: there is no such setting"),
        ("key: {format: string, column: a b}", "key: column: String should match pattern"),
        ("key: {column: a}", "key: format: is missing. Write one of string"),
        (
            "key: {format: string, column: _kafka}",
            "table: key: column: is _kafka, which is the metadata column. Choose",
        ),
    ],
)
def test_what_cannot_be_is_refused(text: str, line: str) -> None:
    assert line in refusal(f"topic: a\n{text}").splitlines()[0]
