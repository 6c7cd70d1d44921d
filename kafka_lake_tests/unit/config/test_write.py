"""The group ``write:``."""

import pytest

from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.unit.config import refusal, spec

DEBEZIUM = "format: {type: json, envelope: debezium}\n"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("append", {}),
        ("{mode: append}", {}),
        ("upsert", {"write": "upsert"}),
        ("{mode: upsert, key: id, order_by: [at]}", {"write": "upsert", "key": ("id",), "order_by": ("at",)}),
        (
            "{mode: upsert, deletes: soft, delete_when: a = 1, delete_retention: 36h}",
            {"write": "upsert", "deletes": "soft", "delete_when": "a = 1", "keep_deletes": "36h"},
        ),
        ("{mode: upsert, ignore_null_updates: true}", {"write": "upsert", "ignore_null_updates": True}),
        ("{mode: upsert, ignore_null_updates: [a]}", {"write": "upsert", "ignore_null_updates": ("a",)}),
    ],
)
def test_settings_arrive(text: str, fields: dict[str, object]) -> None:
    assert spec(f"topic: a\ntable: {{write: {text}}}") == TopicTable("a", **fields)  # type: ignore[arg-type]


def test_a_snapshot_replaces_rows_if_the_settings_say_so() -> None:
    for text, most in (("replace", "10%"), ("{mode: replace, max_deletes: 3}", 3)):
        found = spec(f"topic: a\n{DEBEZIUM}table: {{write: {{mode: upsert, on_snapshot: {text}}}}}")
        assert (found.snapshot, found.max_removed) == ("replace", most)


def test_a_history_tracks_columns() -> None:
    found = spec("topic: a\ntable: {write: {mode: history, key: [id], track: [status]}}")
    assert (found.write, found.key, found.track) == ("history", ("id",), ("status",))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{mode: upsert, track: [a]}", "table: write: track: there is no such setting"),
        ("{mode: history, delete_retention: 1d}", "table: write: delete_retention: there is no such setting"),
        ("{mode: history, on_snapshot: replace}", "table: write: on_snapshot: there is no such setting"),
        ("{mode: history, deletes: soft}", "table: write: deletes: Input should be 'apply', 'ignore' or 'fail'"),
        ("{mode: history, on_truncate: apply}", "table: write: on_truncate: Input should be 'fail' or 'ignore'"),
        ("{mode: append, deletes: soft}", "table: write: deletes: there is no such setting"),
        ("{key: [a]}", "table: write: mode: is missing. Write one of append, upsert, history"),
        ("merge", "table: write: 'merge' isn't known. Write one of append, upsert, history"),
        ("{mode: upsert, deletes: hard}", "table: write: deletes: Input should be 'apply'"),
        ("{mode: upsert, delete_retention: long}", "table: write: delete_retention: 'long' is not a duration"),
        ("{mode: upsert, on_truncate: fail}", "write: on_truncate: has no effect: only an envelope reports truncates"),
        ("{mode: upsert, on_snapshot: replace}", "table: write: on_snapshot: replace needs envelope: debezium"),
        ("{mode: upsert, key: [id], ignore_null_updates: [id, v]}", "write: ignore_null_updates: id is in key: or"),
        ("{mode: upsert, key: ['']}", "table: write: key: '' is empty or occurs twice. Name each column once"),
        ("{mode: upsert, key: [id], order_by: [at, at]}", "table: write: order_by: 'at' is empty or occurs twice"),
        ("{mode: upsert, key: [a-b]}", "write: key: 'a-b' can't be a column, whose name has letters, digits and under"),
        ("{mode: upsert, ignore_null_updates: [a.b]}", "write: ignore_null_updates: 'a.b' can't be a column, whose n"),
        ("{mode: upsert, order_by: [2xx]}", "table: write: order_by: '2xx' can't be a column, whose name has"),
        ("{mode: upsert, ignore_null_updates: 3}", "table: write: ignore_null_updates: "),
        ("{mode: history, key: [id], track: [id, a]}", "table: write: track: id is in key:, which identifies rows"),
    ],
)
def test_what_cannot_be_is_refused(text: str, line: str) -> None:
    assert line in refusal(f"topic: a\ntable: {{write: {text}}}").splitlines()[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{mode: upsert, order_by: [at]}", "table: write: order_by: envelope debezium already has the order"),
        (
            "{mode: upsert, on_snapshot: {mode: replace, max_deletes: some}}",
            "on_snapshot: max_deletes: 'some' isn't a limit",
        ),
        ("{mode: upsert, on_snapshot: {mode: merge, max_deletes: 3}}", "max_deletes: there is no such setting"),
        ("append", "format: envelope: has no effect: write: append doesn't decode envelopes"),
        ("{mode: upsert, ignore_null_updates: true}", "write: ignore_null_updates: in envelope debezium, a null is"),
        ("{mode: upsert, on_truncate: apply, deletes: soft}", "table: write: on_truncate: apply removes rows"),
        (
            "{mode: upsert, on_snapshot: replace, deletes: soft}",
            "on_snapshot: replace removes rows, and deletes: s",
        ),
        ("{mode: upsert, on_snapshot: replace, deletes: ignore}", "and deletes: ignore keeps them"),
    ],
)
def test_what_goes_with_no_envelope_is_refused(text: str, line: str) -> None:
    assert line in refusal(f"topic: a\n{DEBEZIUM}table: {{write: {text}}}").splitlines()[0]


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("write: upsert, columns: id int, transform: 'a:b'", "table: transform: can't be combined with write: upsert"),
        ("write: {mode: upsert, key: [ID]}, columns: id int", "table: write: key: ID isn't in columns:, which are id"),
        ("write: {mode: upsert, order_by: [at]}, columns: id int", "table: write: order_by: at isn't in columns:"),
        (
            "write: {mode: upsert, order_by: at}, columns: at string",
            "write: order_by: at (string) is neither a time nor",
        ),
        ("write: {mode: history, order_by: at}, columns: 'at varchar(9)'", "order_by: at (varchar(9)) is neither"),
        (
            "write: {mode: upsert, deletes: soft}, columns: _is_deleted int",
            "columns: _is_deleted is a column that kafka_lake adds",
        ),
        (
            "write: history, columns: 'id int, valid_to int'",
            "table: columns: valid_to is a column that kafka_lake adds",
        ),
        ("write: {mode: history, track: [B]}, columns: b int", "table: write: track: B isn't in columns:"),
    ],
)
def test_what_goes_with_no_such_table_is_refused(table: str, line: str) -> None:
    assert line in refusal(f"topic: a\ntable: {{{table}}}").splitlines()[0]


@pytest.mark.parametrize("type_", ["avro", "json"])
def test_key_is_refused_with_an_envelope(type_: str) -> None:
    text = f"topic: a\nkey: avro\nformat: {{type: {type_}, envelope: debezium}}\ntable: {{write: upsert}}"
    assert refusal(text) == "table: write: an envelope reads keys itself. Remove the topic's key:"


def test_a_truncate_has_no_column_of_order_by() -> None:
    write = "{mode: upsert, order_by: [at], on_truncate: apply}"
    text = f"topic: a\nformat: {{type: json, envelope: canal}}\ntable: {{write: {write}}}"
    assert "on_truncate: apply needs the order of Kafka or of the source" in refusal(text)
