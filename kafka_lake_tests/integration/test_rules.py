"""Rules on real servers: what keeps them is in the table, what breaks them is one dead letter, and nothing is lost."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.gate import GateFailedError
from kafka_lake.ingest.observer import Observer
from kafka_lake.ingest.rule import AcceptedValues, Pattern, Range, RowCount, RuleEntry
from kafka_lake.ingest.run import ingest, replay_dead_letters
from kafka_lake.ingest.stage.arrow_writer import DECODED_BY_ARROW
from kafka_lake.ingest.stage.judge import REFUSED
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.positions import summary_of
from kafka_lake_tests.conftest import Topic, View

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

DDL = "id bigint, status string, amount double, email string, total double, tax double"
RULES = (
    RuleEntry(not_null=("id",)),
    RuleEntry(accepted_values=AcceptedValues("status", ("new", "paid"))),
    RuleEntry(range=Range("amount", 0, 10_000)),
    RuleEntry(pattern=Pattern("email", "^[^@]+@[^@]+$")),
    RuleEntry(expression="total >= tax AND _kafka.offset >= 0", name="total_covers_tax"),
    RuleEntry(unique=("id",)),
)
GOOD: dict[str, Any] = {"status": "new", "amount": 5.5, "email": "a@b", "total": 2.0, "tax": 1.0}
BAD: list[dict[str, Any]] = [
    {"id": None},
    {"status": "lost"},
    {"amount": -0.5},
    {"amount": 10_000.5, "email": "nobody", "status": "lost"},
    {"email": "@"},
    {"total": 0.5},
    # A null is neither right nor wrong.
    {"status": None},
    {"amount": None, "email": None},
    {"total": None},
    {"amount": 0.0},
    {"amount": 10_000.0},
]


def broken(row: Mapping[str, Any], seen: set[int]) -> list[str]:
    """Return the names of the rules that a row breaks, as `RULES` say it, in Python."""
    found = []
    if row["id"] is None:
        found.append("not_null_id")
    if row["status"] is not None and row["status"] not in ("new", "paid"):
        found.append("accepted_values_status")
    if row["amount"] is not None and not 0 <= row["amount"] <= 10_000:
        found.append("range_amount")
    if row["email"] is not None and (row["email"].count("@") != 1 or row["email"].strip("@") != row["email"]):
        found.append("pattern_email")
    if row["total"] is not None and row["tax"] is not None and row["total"] < row["tax"]:
        found.append("total_covers_tax")
    if row["id"] in seen:
        found.append("unique_id")
    elif row["id"] is not None and not found:
        seen.add(row["id"])
    return found


def names_in(letter: Mapping[str, Any]) -> list[str]:
    """Return the names of the rules that a dead letter's message tells of."""
    told = letter["error_message"].split(": ", 1)[1]
    return [part.split(" (")[0] for part in told.split("; ")]


@pytest.mark.parametrize(
    "settings", [{}, {"arrow": False, "transform": "kafka_lake_tests.integration.transforms:with_tenfold"}]
)
def test_what_breaks_rules_is_one_dead_letter_each_and_all_others_are_rows(
    settings: dict[str, Any], new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(DDL, rules=RULES, rules_fail_above=None, **settings)
    rows = [{"id": n, **GOOD, **(BAD[n % len(BAD)] if n % 4 == 3 else {})} for n in range(120)]
    # The first by Kafka's order stays, unless other rules refuse it.
    rows += [{"id": 7, **GOOD}, {"id": 0, **GOOD}, {"id": 0, **GOOD, "total": 0.0}, {"id": 3, **GOOD}]
    for number, row in enumerate(rows):
        topic.send(row, number % 2, key=b"k%d" % number, headers=[("h", b"v")])
    topic.send(b"junk")
    topic.send(None)
    report = ingest(spec, connections(), "run-1")
    see, seen = view(spec), set[int]()
    expected = {
        sent.place: broken(json.loads(sent.value or b""), seen)
        for sent in sorted(topic.ledger[:124], key=lambda s: s.place)
    }
    see.assert_exactly_once(topic.ledger)
    assert {(r["_kafka"]["partition"], r["_kafka"]["offset"]) for r in see.rows()} == {
        place for place, names in expected.items() if not names
    }
    sent = {each.place: each for each in topic.ledger}
    letters = {(r["partition"], r["offset"]): r for r in see.dead_letters() if r["error_class"] != "not_json"}
    assert {place: names_in(letter) for place, letter in letters.items()} == {
        place: names for place, names in expected.items() if names
    }
    for place, letter in letters.items():
        assert letter["error_class"] == f"rule:{expected[place][0]}"
        assert (letter["value"], letter["key"]) == (sent[place].value, sent[place].key)
        assert letter["headers"] == [{"key": "h", "value": b"v"}]
        assert "-0.5" not in letter["error_message"]
    findings = {f.check: f for f in report.findings() if f.is_rule}
    for name in ("not_null_id", "range_amount", "total_covers_tax", "unique_id"):
        facts = findings[f"rule_{name}"].facts
        assert facts["failed"] == sum(name in names for names in expected.values())
        assert facts["passed"] + facts["failed"] == facts["evaluated"] == 124
    assert findings["rule_total_covers_tax"].facts["null"] == sum(row["total"] is None for row in rows)
    assert all(f.passed for f in report.findings())
    head = see.table.current_snapshot()
    assert head is not None
    assert json.loads(summary_of(head)[REFUSED])["range_amount"] == findings["rule_range_amount"].facts["failed"]
    assert (DECODED_BY_ARROW in summary_of(head)) == (not settings)
    see.assert_no_branches()
