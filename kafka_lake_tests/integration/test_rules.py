"""Rules on real servers: what keeps them is in the table, what breaks them is one dead letter, and nothing is lost."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import summary_of
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.run import ingest, replay, replay_dead_letters
from kafka_lake.quality.result import REFUSED
from kafka_lake.runtime.commit import CheckFailedError
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.rule import (
    BY_ARROW,
    AcceptedValues,
    ForeignKey,
    Pattern,
    Range,
    RowCount,
    RuleEntry,
    rules_of,
)
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.append import DECODED_BY_ARROW
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.written_by import by

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

DDL = "id bigint, status string, amount double, email string, total double, tax double"
RULES = (
    RuleEntry(not_null=("id",)),
    RuleEntry(accepted_values=AcceptedValues(column="status", values=("new", "paid"))),
    RuleEntry(range=Range(column="amount", min=0, max=10_000)),
    RuleEntry(pattern=Pattern(column="email", regex="^[^@]+@[^@]+$")),
    RuleEntry(expression="total >= tax AND _kafka.offset >= 0", name="total_covers_tax"),
    RuleEntry(unique=("id",)),
)

# No row breaks one that Spark asks: what breaks the others is never written.
SET_APART = (
    *RULES[:4],
    RuleEntry(row_count=RowCount(min=1)),
    RuleEntry(expression="_kafka.offset >= 0", name="placed"),
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


def broken(row: Mapping[str, Any], seen: set[int], of_rows_only: bool) -> list[str]:
    """Return the names of the rules for which a row is refused, as `RULES` say it, in Python.

    Args:
        row: The row.
        seen: Ids of the rows before it that stay.
        of_rows_only: Whether Spark's rules aren't asked: total_covers_tax and unique_id.
    """
    found = []
    if row["id"] is None:
        found.append("not_null_id")
    if row["status"] is not None and row["status"] not in ("new", "paid"):
        found.append("accepted_values_status")
    if row["amount"] is not None and not 0 <= row["amount"] <= 10_000:
        found.append("range_amount")
    if row["email"] is not None and (row["email"].count("@") != 1 or row["email"].strip("@") != row["email"]):
        found.append("pattern_email")
    if found or of_rows_only:
        return found
    if row["total"] is not None and row["tax"] is not None and row["total"] < row["tax"]:
        found.append("total_covers_tax")
    if row["id"] in seen:
        found.append("unique_id")
    elif not found:
        seen.add(row["id"])
    return found


def names_in(letter: Mapping[str, Any]) -> list[str]:
    """Return the names of the rules that a dead letter's message tells of."""
    reported = letter["error_message"].split(": ", 1)[1]
    return [part.split(" (")[0] for part in reported.split("; ")]


def rules_are_kept(
    topic: Topic,
    connections: NewConnections,
    view: NewView,
    settings: Mapping[str, Any],
    rules: Sequence[RuleEntry] = RULES,
) -> None:
    """Ingest good rows and bad ones, and compare all that comes of them with what the model says."""
    spec, steps = topic.spec(DDL, rules=tuple(rules), rules_fail_above=None, **settings), list[str]()
    rows = [{"id": n, **GOOD, **(BAD[n % len(BAD)] if n % 4 == 3 else {})} for n in range(120)]
    # The first by Kafka's order stays, unless other rules refuse it.
    rows += [{"id": 7, **GOOD}, {"id": 0, **GOOD}, {"id": 0, **GOOD, "total": 0.0}, {"id": 3, **GOOD}]
    for number, row in enumerate(rows):
        topic.send(row, number % 2, key=b"k%d" % number, headers=[("h", b"v")])
    topic.send(b"junk")
    topic.send(None)
    report = ingest(spec, connections(), "run-1", observer=Observer(step_done=steps.append))
    assert steps.count("table staged") == (1 if rules is SET_APART else 2)
    see, seen = view(spec), set[int]()
    expected = {
        sent.place: broken(json.loads(sent.value or b""), seen, rules is SET_APART)
        for sent in sorted(topic.ledger[:124], key=lambda s: s.place)
    }
    see.assert_exactly_once(topic.ledger)
    assert {(r["_kafka"]["partition"], r["_kafka"]["offset"]) for r in see.rows()} == {
        place for place, names in expected.items() if not names
    }
    sent = {record.place: record for record in topic.ledger}
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
    by_arrow = {rule.name for rule in rules_of(rules) if rule.kind in BY_ARROW}
    gone = sum(not by_arrow.isdisjoint(names) for names in expected.values())
    for rule in (item for item in rules_of(rules) if item.is_of_rows):
        facts = findings[rule.check].facts
        assert facts["failed"] == sum(rule.name in names for names in expected.values())
        assert facts["passed"] + facts["failed"] == facts["evaluated"] == 124 - (rule.name not in by_arrow and gone)
    assert findings["rule_range_amount"].facts["null"] == sum(row["amount"] is None for row in rows)
    assert all(f.passed for f in report.findings())
    head = see.table.current_snapshot()
    assert head is not None
    refused = {name: facts["failed"] for name, facts in ((f[5:], value.facts) for f, value in findings.items())
               if facts.get("failed")}  # fmt: skip
    assert json.loads(summary_of(head)[REFUSED]) == refused
    assert (DECODED_BY_ARROW in summary_of(head)) == (not settings)
    see.assert_no_branches()


@pytest.mark.parametrize(
    ("rules", "settings"),
    [
        (RULES, {}),
        (SET_APART, {}),
        exhaustive(RULES, {"transform": "kafka_lake_tests.integration.transforms:with_tenfold"}),
    ],
    ids=["all kinds", "set apart", "by Spark"],
)
def test_record_that_breaks_rules_is_one_dead_letter(
    rules: tuple[RuleEntry, ...],
    settings: dict[str, Any],
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
) -> None:
    rules_are_kept(new_topic(2), connections, view, settings, rules)


def test_rules_of_rows_mean_the_same_however_rows_are_written(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    rules = (
        RuleEntry(pattern=Pattern(column="s", regex="^.b$")),
        RuleEntry(range=Range(column="n", min=0.5), on_failure="warn"),
        RuleEntry(range=Range(column="d", max="2026-01-02")),
    )
    # To Java, a line end may follow what $ ends, and \r is none of the characters of a dot.
    for s, n, d in (("ab", 1, None), ("ab\n", 0, "2026-01-03"), ("\rb", 0, "2026-01-02"), (None, None, "2026-01-03")):
        topic.send({"id": len(topic.ledger), "s": s, "n": n, "d": d})
    ways: dict[str, dict[str, Any]] = {"arrow": {}, "spark": by(False)}
    ways["keyed"] = {"write": "upsert", "key": ("id",)}
    for way, settings in ways.items():
        spec = topic.spec("id bigint, s string, n bigint, d date", rules=rules, rules_fail_above=None, **settings)
        spec = replace(spec, table=f"{topic.table}_{way}")
        report = ingest(spec, connections(), way)
        see = view(spec)
        assert see.ids() == [0, 2], way
        assert {letter["offset"]: names_in(letter) for letter in see.dead_letters()} == {
            1: ["pattern_s", "range_n", "range_d"],
            3: ["range_d"],
        }
        (warned,) = (f.facts for f in report.findings() if f.warns)
        counts = [warned[name] for name in ("evaluated", "failed", "null", "first_broken")]
        assert counts == [4, 2, 1, "partition 0, offset 1"]
        head = see.table.current_snapshot()
        assert head is not None
        assert (DECODED_BY_ARROW in summary_of(head)) == (way == "arrow")
        assert json.loads(summary_of(head)[REFUSED]) == {"pattern_s": 1, "range_d": 2}


AMOUNT = RuleEntry(range=Range(column="amount", min=0))
CHECK = RuleEntry(check="kafka_lake_tests.decode.checks:amounts")


def amounts(topic: Topic, values: list[Any], first: int = 0) -> None:
    for number, amount in enumerate(values, first):
        topic.send({"id": number, "amount": amount})


@pytest.mark.exhaustive
def test_failed_rule_publishes_nothing(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic, ddl = new_topic(), "id bigint, amount double"
    amounts(topic, [1.0, 2.0])
    ingest(topic.spec(ddl), connections(), "first")
    amounts(topic, [-1.0] * 3 + [5.0] * 57, first=2)
    see = view(topic.spec(ddl))
    before = see.fingerprint()
    failing = topic.spec(ddl, rules=(RuleEntry(range=Range(column="amount", min=0), on_failure="fail"),))
    with pytest.raises(CheckFailedError) as refused:
        ingest(failing, connections(), "fails")
    assert (
        f"Topic {topic.name}, table {'.'.join(failing.identifier)}: rule_range_amount: 3 of 60 rows break it (amount "
        "is at least 0), the first in partition 0 at offset 2; on_failure is fail." in refused.value.message
    )
    assert "change the rule" in refused.value.remedy
    assert see.fingerprint() == before
    for rules, says in (
        ((RuleEntry(row_count=RowCount(max=59)),), "the commit has 60 rows, and the number of rows is at most 59"),
        ((RuleEntry(range=Range(column="amount", min=0), fail_above=2),), "3 of 60 rows break it"),
        (
            (CHECK,),
            "of 60 rows, 1 of 1 checks fail: amount is not negative: 3 rows, -1.0",
        ),
        ((RuleEntry(expression="amount >= taxes"),), "'amount >= taxes' isn't a condition on the rows"),
    ):
        with pytest.raises((CheckFailedError, ConfigurationError)) as refused_too:
            ingest(topic.spec(ddl, rules=rules), connections(), "fails")
        assert says in str(refused_too.value)
        assert see.fingerprint() == before
    # Three rows are no release that went bad, whatever their share; more of them are.
    kept = topic.spec(ddl, rules=(AMOUNT, CHECK), rules_fail_above="1%")
    ingest(kept, connections(), "three")
    assert [letter["error_class"] for letter in see.dead_letters()] == ["rule:range_amount"] * 3
    amounts(topic, [-1.0] * 11 + [5.0] * 40, first=62)
    before = see.fingerprint()
    with pytest.raises(CheckFailedError, match=r"11 of 51 rows break it .*; the limit is 1% "):
        ingest(kept, connections(), "eleven")
    assert see.fingerprint() == before
    report = ingest(
        topic.spec(ddl, rules=(RuleEntry(range=Range(column="amount", min=0), on_failure="warn"),)),
        connections(),
        "warns",
    )
    (finding,) = [result for result in report.findings() if result.is_rule]
    assert (finding.passed, finding.warns, finding.facts["failed"]) == (False, True, 11)
    assert len(see.rows()) == 2 + 57 + 51
    see.assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_a_row_on_which_an_expression_raises_an_error_is_found(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send_ids([1, 0, 5])
    spec = topic.spec(rules=(RuleEntry(expression="10 DIV id > 1"),))
    ingest(spec, connections(), "run-1")
    see = view(spec)
    assert see.ids() == [1, 5]
    (letter,) = see.dead_letters()
    assert (letter["offset"], letter["error_class"]) == (1, "undecodable")
    assert "DIVIDE_BY_ZERO" in letter["error_message"]
    see.assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_text_that_overflows_rlike_is_a_dead_letter(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    for text in ("ab", "ab" * 50_000, "c"):
        topic.send({"text": text})
    spec = topic.spec("text string", rules=(RuleEntry(expression="text RLIKE '^(a|b)*$'", name="like"),))
    ingest(spec, connections(), "run-1")
    see = view(spec)
    assert [row["text"] for row in see.rows()] == ["ab"]
    assert sorted((r["offset"], r["error_class"]) for r in see.dead_letters()) == [
        (1, "undecodable"),
        (2, "rule:like"),
    ]
    see.assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_dead_letter_replay_compares_by_current_columns(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, ddl = new_topic(), "id bigint, amount double"
    for row in ({"id": 1, "amount": 1.0}, *({"id": n, "amount": -1.0, "code": "a"} for n in (2, 3))):
        topic.send(row)
    ingest(topic.spec(ddl, rules=(AMOUNT,)), connections(), "first")
    # No commit has the new column yet.
    later = topic.spec(f"{ddl}, code string", rules=(RuleEntry(unique=("code",)),))
    done = replay_dead_letters(later, connections(), "again")
    assert (done.moved, done.remaining) == (1, 1)
    see = view(later)
    assert sorted((row["id"], row["code"]) for row in see.rows()) == [(1, None), (2, "a")]
    assert [(r["offset"], r["error_class"]) for r in see.dead_letters()] == [(2, "rule:unique_code")]


@pytest.mark.exhaustive
def test_run_with_rules_killed_between_publications_is_completed(
    new_topic: NewTopic, connections: NewConnections, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    spec = topic.spec("id bigint, amount double", rules=(AMOUNT, RuleEntry(unique=("id",))))
    amounts(topic, [-1.0, 1.0, None, -2.0])
    topic.send({"id": 1, "amount": 2.0})

    class Killed(BaseException):
        """Stands for the end of a process."""

    def die(done: str) -> None:
        if done == "dead letters published":
            for name in ("discard", "drop"):
                monkeypatch.setattr(StagingBranch, name, lambda self: None)
            raise Killed(done)

    with pytest.raises(Killed):
        ingest(spec, connections(), "killed", observer=Observer(step_done=die))
    monkeypatch.undo()
    # With other commits, another row is the first of its key: what was a dead letter is a row by then, and no letter.
    report = ingest(TopicTable(**{**vars(spec), "max_records_per_commit": 4}), connections(), "next")
    assert len(report.commits) == 2
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert sorted((r["id"], r["amount"]) for r in see.rows()) == [(1, 1.0), (1, 2.0), (2, None)]
    assert sorted((r["offset"], r["error_class"]) for r in see.dead_letters()) == [
        (0, "rule:range_amount"),
        (3, "rule:range_amount"),
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("more", [False, exhaustive(True)])
def test_dead_letters_of_a_rule_are_replayed_once_it_is_relaxed(
    more: bool, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, ddl = new_topic(), None
    warn = [RuleEntry(not_null=("later",)), RuleEntry(expression="later > 1 OR id > 2", name="or_later")]
    rules = (AMOUNT, RuleEntry(unique=("id",)), *(rule.model_copy(update={"on_failure": "warn"}) for rule in warn))
    spec = topic.spec(ddl, rules=rules)
    for row in ({"id": 1, "amount": -1.0}, {"id": 2, "amount": -5.0}, {"id": 3, "amount": 1.0}, {"id": 3}):
        topic.send(row)
    report = ingest(spec, connections(), "first")
    see = view(spec)
    assert see.ids() == [3]
    # A column that no record has shown yet is null.
    finding = next(f for f in report.findings() if f.check == "rule_not_null_later")
    assert (finding.warns, finding.facts["not_in_table"], finding.facts["failed"]) == (True, "later", 4)
    finding = next(f for f in report.findings() if f.check == "rule_or_later")
    assert (finding.facts["passed"], finding.facts["null"], finding.facts["not_in_table"]) == (2, 0, "later")
    relaxed = TopicTable(**{**vars(spec), "rules": (RuleEntry(range=Range(column="amount", min=-2)), *spec.rules[1:])})
    done = replay_dead_letters(relaxed, connections(), "again")
    assert (done.moved, done.remaining) == (1, 2)
    see.assert_exactly_once(topic.ledger)
    assert see.ids() == [1, 3]
    # The row that the duplicate is one of is in the table, by another commit.
    assert sorted((r["offset"], r["error_class"]) for r in see.dead_letters()) == [
        (1, "rule:range_amount"),
        (3, "rule:unique_id"),
    ]
    done = replay_dead_letters(topic.spec(ddl), connections(), "without rules")
    assert (done.moved, done.remaining) == (2, 0)
    assert see.ids() == [1, 2, 3, 3]
    if not more:
        return
    # Read again by the rules: what breaks them leaves the table.
    replay(spec, connections(), "all again", replay_range=ReplayRange())
    see.assert_exactly_once(topic.ledger)
    assert see.ids() == [3]
    assert sorted((r["offset"], r["error_class"]) for r in see.dead_letters()) == [
        (0, "rule:range_amount"),
        (1, "rule:range_amount"),
        (3, "rule:unique_id"),
    ]


@pytest.mark.exhaustive
def test_rules_that_look_at_other_tables_and_at_earlier_commits(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    stores, topic = new_topic(), new_topic()
    of_stores = stores.spec("id int, name string")
    key = ForeignKey(columns=("store",), table=".".join(of_stores.identifier), to=("id",))
    rules = (RuleEntry(foreign_key=key), RuleEntry(unique=("event",), within="table"))
    spec = topic.spec("event bigint, store bigint", rules=rules, rules_fail_above=None)
    topic.send({"event": 1, "store": 7})
    with pytest.raises(ConfigurationError, match=f"foreign_key_store: there is no table {key.table}"):
        ingest(spec, connections(), "no table")
    stores.send({"id": 7, "name": "a"})
    ingest(of_stores, connections(), "stores")
    topic.send({"event": 2, "store": 8})
    topic.send({"event": 3})
    ingest(spec, connections(), "first")
    topic.send({"event": 1, "store": 7})
    topic.send({"event": 4, "store": 7})
    report = ingest(spec, connections(), "second")
    see = view(spec)
    facts = {f.check: f.facts for f in report.findings() if f.is_rule}
    assert facts["rule_foreign_key_store"]["snapshot"] == str(view(of_stores).table.metadata.current_snapshot_id)
    assert facts["rule_unique_event"]["failed"] == 1
    assert sorted(row["event"] for row in see.rows()) == [1, 3, 4]
    letters = [(0, 1, "rule:foreign_key_store"), (0, 3, "rule:unique_event")]
    assert sorted((r["partition"], r["offset"], r["error_class"]) for r in see.dead_letters()) == letters
    # The store has come, and what is read again is no duplicate of itself.
    stores.send({"id": 8, "name": "b"})
    ingest(of_stores, connections(), "more stores")
    assert replay_dead_letters(spec, connections(), "again").moved == 1
    replay(spec, connections(), "all again", replay_range=ReplayRange())
    see.assert_exactly_once(topic.ledger)
    assert sorted(row["event"] for row in see.rows()) == [1, 2, 3, 4]
    assert [(r["offset"], r["error_class"]) for r in see.dead_letters()] == [(3, "rule:unique_event")]
