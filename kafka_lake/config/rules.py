"""Validation of a table's rules together with its other settings."""

from collections.abc import Iterator, Sequence

from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.schema.names import name_problem
from kafka_lake.spec.ddl import parsed_ddl
from kafka_lake.spec.rule import BY_ARROW, MOST_BY_ARROW, Rule, RuleEntry, rules_of
from kafka_lake.spec.topic_table import TopicTable


def rule_problems(spec: TopicTable, declared: Sequence[str] | None) -> Iterator[str]:
    """Give what is wrong with the rules of a table that are right one by one."""
    if spec.is_keyed:
        yield from _keyed_problems(spec.rules, spec.write)
    yield from _together(spec, declared)


def _keyed_problems(entries: Sequence[RuleEntry], write: str) -> Iterator[str]:
    """Give what is wrong with rules of a keyed table."""
    for number, entry in enumerate(entries):
        if entry.unique:
            yield (
                f"{_where(entry, number)}: isn't supported with write: {write}, which keeps one row per key or "
                "version anyway."
            )


def derived_rule_problems(entries: Sequence[RuleEntry]) -> Iterator[str]:
    """Give what is wrong with the setting of a derived table."""
    for number, entry in enumerate(entries):
        problems = []
        if entry.on_failure == "dead_letter":
            problems = ["on_failure: dead_letter isn't supported for derived tables. Set fail (default) or warn."]
        if entry.within is not None and not problems:
            problems = ["within: isn't supported for derived tables. Use write: upsert, which has each key once."]
        if entry.fail_above is not None and entry.on_failure is None and not problems:
            problems = [
                "fail_above: has no effect, since any row that breaks the rule fails the run. Set on_failure: warn."
            ]
        yield from (f"{_where(entry, number)}: {problem}" for problem in problems)
        if problems:
            return
    yield from _of_all(rules_of(entries))


def _where(entry: RuleEntry, number: int) -> str:
    return entry.name or f"number {number + 1}{''.join(f' ({kind})' for kind in entry.kinds())}"


def _together(spec: TopicTable, declared: Sequence[str] | None) -> Iterator[str]:
    """Give what is wrong with the rules of a table together, or with its other settings."""
    rules, excluded = spec.named_rules, [name.lower() for name in spec.except_columns]
    yield from _of_all(rules)
    own = ".".join(spec.identifier)
    for rule in rules:
        if rule.entry.foreign_key is not None and rule.entry.foreign_key.table == own:
            yield f"{rule.name}: {own} is the table itself, whose new rows aren't visible yet."
        if rule.on_failure == "dead_letter" and not spec.keeps_dead_letters:
            yield (
                f"{rule.name}: on_failure: dead_letter needs dead_letters: table, which is {spec.dead_letters}. Set "
                "on_failure: fail or warn."
            )
        if left_out := [column for column in rule.columns if column.split(".")[0].lower() in excluded]:
            yield f"{rule.name}: {', '.join(left_out)} is in exclude_fields:. Remove it from one of them."
        if spec.transform is None and declared is None:
            yield from (f"{rule.name}: {problem}." for name in rule.columns if (problem := name_problem(name)))
        elif spec.transform is None and declared is not None:
            yield from _columns_problems(rule, spec, declared)


def _of_all(rules: Sequence[Rule]) -> Iterator[str]:
    """Give what is wrong with names and number of rules."""
    if sum(rule.is_in_tasks for rule in rules) > MOST_BY_ARROW:
        yield f"at most {MOST_BY_ARROW} of {', '.join(BY_ARROW)}, counted by column. Remove some."
    names = [rule.name for rule in rules]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        yield f"{', '.join(twice)} occurs twice. Set another name: for one of them."


def _columns_problems(rule: Rule, spec: TopicTable, declared: Sequence[str]) -> Iterator[str]:
    columns = {column.lower() for column in (*declared, METADATA_COLUMN)}
    if spec.key_format is not None:
        columns.add(spec.key_column.lower())
    if missing := [c for c in rule.columns if c.lower() not in columns and c.split(".")[0].lower() not in columns]:
        yield f"{rule.name}: {', '.join(missing)} isn't in columns:, which are {', '.join(declared)}."
    required = [field["name"] for field in parsed_ddl(str(spec.schema))["fields"] if not field["nullable"]]
    if rule.kind == "not_null" and rule.columns[0] in required:
        yield (
            f"{rule.name}: never fails: columns: says that {rule.columns[0]} is NOT NULL, so a record without it is a "
            "dead letter of class null_in_required_column. Remove one of them."
        )
