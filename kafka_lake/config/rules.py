"""The entries of `rules:`, and which of them can't be."""

import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, StrictBool, StrictFloat, StrictInt, create_model

from kafka_lake.common.text import seconds_of
from kafka_lake.config.settings import Limit, OptionalText, Problem, Settings, Text, TextList
from kafka_lake.errors import ConfigurationError
from kafka_lake.quality.volume import LEAST_HISTORY
from kafka_lake.spec.rule import (
    BY_ARROW,
    KINDS,
    MOST_BY_ARROW,
    OF_ROWS,
    WHOLE_TABLE,
    AcceptedValues,
    ForeignKey,
    NullShare,
    Pattern,
    Range,
    RowCount,
    Rule,
    RuleEntry,
    Volume,
    rules_of,
)
from kafka_lake.spec.topic_table import TopicTable, limit_of, pydantic_fields

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_REFERENCE = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
_TEXT_IN_SQL = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL)


def rule_problems(spec: TopicTable, declared: Sequence[str] | None) -> Iterator[str]:
    """Give what is wrong with the rules of a table that are right one by one."""
    if spec.write != "append":
        yield from _keyed_problems(spec.rules, spec.write)
    yield from _together(spec, declared)


def _keyed_problems(entries: Sequence[RuleEntry], write: str) -> Iterator[str]:
    """Give what is wrong with rules of a keyed table."""
    for number, entry in enumerate(entries):
        if entry.unique:
            yield (
                f"{_where(entry, number)}: isn't there for write: {write}, where each change of a key has the same "
                "values once more. The table has one row for each key without it."
            )
        if entry.volume is not None:
            yield f"{_where(entry, number)}: isn't there for write: {write}, whose rows don't tell how many came."


def derived_rule_problems(entries: Sequence[RuleEntry]) -> Iterator[str]:
    """Give what is wrong with the setting of a derived table."""
    for number, entry in enumerate(entries):
        problems = list(entry_problems(entry))
        if entry.on_failure == "dead_letter" and not problems:
            problems = ["on_failure: dead_letter is for rows of records. Set fail, which is the default here, or warn."]
        if entry.volume is not None and not problems:
            problems = ["volume is for rows of records, by their Kafka timestamp."]
        if entry.within is not None and not problems:
            problems = ["within: is for rows of records. A derived table has each key once by write: upsert."]
        if entry.fail_above is not None and entry.on_failure is None and not problems:
            problems = ["fail_above: has no effect, since any broken row fails the run. Set on_failure: warn."]
        yield from (f"rules: {_where(entry, number)}: {problem}" for problem in problems)
        if problems:
            return
    yield from (f"rules: {problem}" for problem in _of_all(rules_of(entries)))


def _where(entry: RuleEntry, number: int) -> str:
    return entry.name or f"number {number + 1}{''.join(f' ({kind})' for kind in entry.kinds())}"


def _together(spec: TopicTable, declared: Sequence[str] | None) -> Iterator[str]:
    """Give what is wrong with the rules of a table together, or with its other settings."""
    rules = spec.named_rules
    yield from _of_all(rules)
    own = ".".join(spec.identifier)
    for rule in rules:
        if rule.entry.foreign_key is not None and rule.entry.foreign_key.table == own:
            yield f"{rule.name}: {own} is the table itself, whose rows of the same commit it would lack."
        if rule.on_failure == "dead_letter" and spec.dead_letters != "table":
            yield (
                f"{rule.name}: on_failure: dead_letter needs dead_letters: table, which is {spec.dead_letters}. Set "
                "on_failure: fail or warn."
            )
        if left_out := [column for column in rule.columns if column in spec.except_columns]:
            yield f"{rule.name}: {', '.join(left_out)} is in exclude_fields:. Take it out of one of them."
        if spec.transform is None and declared is not None:
            yield from _columns_problems(rule, spec, declared)


def _of_all(rules: Sequence[Rule]) -> Iterator[str]:
    """Give what is wrong with names and number of rules."""
    if sum(rule.kind in BY_ARROW for rule in rules) > MOST_BY_ARROW:
        yield f"at most {MOST_BY_ARROW} of {', '.join(BY_ARROW)}, counted by column. Leave some out."
    names = [rule.name for rule in rules]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        yield f"{', '.join(twice)} is there twice. Give one of them another name: of its own."


def _columns_problems(rule: Rule, spec: TopicTable, declared: Sequence[str]) -> Iterator[str]:
    columns = {each.lower() for each in (*declared, spec.metadata_column or "")}
    if spec.key_format is not None:
        columns.add(spec.key_column.lower())
    if missing := [c for c in rule.columns if c.lower() not in columns and c.split(".")[0].lower() not in columns]:
        yield f"{rule.name}: {', '.join(missing)} isn't in columns:, which are {', '.join(declared)}."
    if rule.kind == "not_null" and rule.columns[0] in _required(str(spec.schema)):
        yield (
            f"{rule.name}: never fails: columns: says that {rule.columns[0]} is NOT NULL, so a record without it is a "
            "dead letter of class null_in_required_column. Leave one of them out."
        )


def _required(ddl: str) -> list[str]:
    """Return the top-level columns of a checked DDL string that are plainly NOT NULL."""
    plain = re.sub(r"<[^<>]*>|\([^()]*\)", "", re.sub(r"<[^<>]*>", "", ddl))
    return [
        part.split()[0].strip("`:")
        for part in plain.split(",")
        if re.search(r"\bnot\s+null\b", part, re.IGNORECASE) and "<" not in part and ">" not in part
    ]


def entry_problems(entry: RuleEntry) -> Iterator[str]:
    """Give what is wrong with an entry of ``rules`` by itself."""
    kinds = entry.kinds()
    if len(kinds) != 1:
        told = f"has {', '.join(kinds)}" if kinds else "says nothing"
        yield f"{told}. Write exactly one of {', '.join(KINDS)}."
        return
    if entry.name is not None and not _NAME.match(entry.name):
        yield f"name: {entry.name!r} is no name. Use letters, digits and underscores."
    yield from _kind_problems(entry)
    of_rows = kinds[0] in OF_ROWS
    if not of_rows and entry.on_failure == "dead_letter":
        yield f"on_failure: dead_letter has no effect: no single row breaks {kinds[0]}. Set fail or warn."
    if entry.fail_above is not None and (entry.on_failure == "fail" or not of_rows):
        yield (
            "fail_above: has no effect, since any broken row fails the run."
            if of_rows
            else (f"fail_above: has no effect: no single row breaks {kinds[0]}. Leave it out.")
        )
    yield from _limit_problems("fail_above", entry.fail_above)


def _limit_problems(setting: str, limit: int | str | None) -> Iterator[str]:
    try:
        allowed = limit_of(limit, setting)
    except ConfigurationError as error:
        yield str(error)
        return
    if allowed == 0:
        yield f"{setting}: {limit} lets no row be broken. Set on_failure: fail instead."


def _kind_problems(entry: RuleEntry) -> Iterator[str]:
    if entry.accepted_values is not None and not entry.accepted_values.values:
        yield "values: is empty, so that every row would break it."
    elif entry.accepted_values is not None and any(map(_is_nan, entry.accepted_values.values)):
        yield "values: NaN equals no value, not even NaN. Leave it out."
    if entry.range is not None:
        yield from _range_problems(entry.range)
    if entry.pattern is not None:
        try:
            pc.match_substring_regex(pa.array([""]), entry.pattern.regex)
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            reason = str(error).removeprefix("Invalid regular expression: ")
            yield f"regex: {entry.pattern.regex!r} is no regular expression of RE2: {reason}."
        if not entry.pattern.regex:
            yield "regex: is empty, which every text matches."
    if entry.expression is not None:
        yield from _expression_problems(entry.expression)
    if entry.foreign_key is not None:
        yield from _foreign_key_problems(entry.foreign_key)
    if entry.within is not None:
        yield from _within_problems(entry)
    if (count := entry.row_count) is not None:
        if not count.min and count.max is None:
            yield "row_count never fails. Give min: or max:."
        if (count.min or 0) < 0 or (count.max is not None and count.max < (count.min or 0)):
            yield f"from min: {count.min} to max: {count.max} there is no number of rows."
    if (volume := entry.volume) is not None:
        if entry.on_failure == "fail":
            yield "volume is about a period that is over: to fail would hold back other rows. Leave on_failure: out."
        if not LEAST_HISTORY <= volume.days <= 366 or volume.deviations <= 0:
            yield f"days: has to be from {LEAST_HISTORY} to 366, and deviations: above 0."
    if entry.null_share is not None:
        yield from _share_problems(entry.null_share.max)
    if entry.check is not None and not _REFERENCE.match(entry.check):
        yield f"check: {entry.check!r} names nothing in Python. Write module:function."


def _foreign_key_problems(given: ForeignKey) -> Iterator[str]:
    if not given.columns:
        yield "columns: is empty, so that no row has anything to look for."
    elif given.to and len(given.to) != len(given.columns):
        yield f"to: has {len(given.to)} columns, and columns: has {len(given.columns)}."
    if [bool(part) for part in given.table.split(".")] != [True, True]:
        yield f"table: {given.table!r} is no table. Write namespace.table."


def _within_problems(entry: RuleEntry) -> Iterator[str]:
    if not entry.unique:
        yield "within: is for unique. Leave it out."
    elif entry.within != WHOLE_TABLE:
        try:
            seconds_of(str(entry.within))
        except ConfigurationError as error:
            yield f"within: {error} Write table for all rows."


def _range_problems(given: Range) -> Iterator[str]:
    least, greatest = given.min, given.max
    bounds: list[Any] = [_time_of(each) or each for each in (least, greatest)]
    if any(map(_is_nan, (least, greatest))):
        yield "NaN is no bound: it is in no range."
    elif least is None and greatest is None:
        yield "range never fails. Give min: or max:."
    elif least is not None and greatest is not None and isinstance(least, str) != isinstance(greatest, str):
        yield f"min: {least!r} and max: {greatest!r} are not of one type."
    elif untimed := [each for each in bounds if isinstance(each, str)]:
        yield f"{untimed[0]!r} is no date or time as ISO 8601 has it. Write numbers without quotes."
    elif None not in bounds and bounds[0] > bounds[1]:
        yield f"min: {least} is above max: {greatest}, so that every row would break it."


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _time_of(text: object) -> datetime | None:
    """Return the time that a bound is, without a zone that in UTC; None if it is none."""
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
        return time.replace(tzinfo=UTC) if time and time.tzinfo is None else time
    except ValueError:
        return None


def _expression_problems(text: str) -> Iterator[str]:
    bare = _TEXT_IN_SQL.sub("''", text).strip()
    if not bare:
        yield "expression: is empty."
    elif bare.lower() in ("true", "false", "null"):
        yield f"expression: {text} is the same for every row."
    elif re.search(r"\bselect\b", bare, re.IGNORECASE):
        yield "expression: a condition on one row can't have a query in it."


def _share_problems(text: str) -> Iterator[str]:
    try:
        share = limit_of(text, "max")
    except ConfigurationError as error:
        yield str(error)
        return
    if not isinstance(share, float):
        yield f"max: {text} is no share. Write it as 5%."
    elif share >= 1:
        yield f"null_share never fails: max: is {text}. Write less than 100%."


# YAML reads 5 as a number and "5" as text: a column of the other type has no such value.
_Value = StrictBool | StrictInt | StrictFloat | str
_Bound = StrictInt | StrictFloat | str | None
_FIELDS: dict[Any, dict[str, Any]] = {
    AcceptedValues: {"column": Text, "values": list[_Value]},
    Range: {"column": Text, "min": _Bound, "max": _Bound},
    Pattern: {"column": Text, "regex": Text},
    ForeignKey: {"columns": TextList, "table": Text, "to": TextList},
    RowCount: {"min": int | None, "max": int | None},
    NullShare: {"column": Text, "max": Text},
    Volume: {"per": Literal["hour", "day"], "days": int, "deviations": float},
}


class RuleKind(Settings):
    """What a kind of rule asks for."""

    @classmethod
    def unknown(cls, key: str) -> str:
        """Return what is wrong with a key: it may be one of the rule as a whole."""
        if key in pydantic_fields(RuleEntry):
            return "is a setting of the rule. Write it beside the kind, not in it"
        return super().unknown(key)


def _kind(declared: Any) -> Any:
    """Return what YAML has for a kind of rule: the fields of its declaration, with their defaults."""
    fields: dict[str, Any] = {
        name: (_FIELDS[declared][name], field.default if not field.is_required() else ...)
        for name, field in pydantic_fields(declared).items()
    }
    return create_model(f"{declared.__name__}Fields", __base__=RuleKind, __doc__=declared.__doc__, **fields)


_KINDS = {declared: _kind(declared) for declared in _FIELDS}


def _in_yaml(hint: Any) -> Any:
    for declared, model in _KINDS.items():
        if hint == declared | None:
            return model | None
    return {tuple[str, ...]: TextList, str | None: OptionalText, int | str | None: Limit}.get(hint, hint)


def _entry_fields() -> dict[str, Any]:
    hints = get_type_hints(RuleEntry, include_extras=True)
    found: dict[str, Any] = {}
    for name, field in pydantic_fields(RuleEntry).items():
        # The default would be shared, and a column that is named by a rule is text.
        kind: Any = OptionalText if name == "name" else _in_yaml(hints[name])
        own: Any = Field(default=field.default, description=field.description, examples=field.examples)
        found[name] = (kind, own)
    return found


_RuleFields: Any = create_model("RuleFields", __base__=Settings, **_entry_fields())


class RuleSettings(_RuleFields):  # type: ignore[misc]
    """One rule: exactly one kind, and what is to be done where it is broken."""

    def problems(self) -> Iterator[Problem]:
        """Give what is wrong with the rule by itself."""
        for problem in entry_problems(self.entry()):
            yield (), problem

    def entry(self) -> RuleEntry:
        """Return the rule as the pipeline takes it."""
        given = {}
        for name in pydantic_fields(RuleEntry):
            value = getattr(self, name)
            kind = next((declared for declared, model in _KINDS.items() if isinstance(value, model)), None)
            given[name] = value if kind is None else kind(**{each: getattr(value, each) for each in vars(value)})
        return RuleEntry(**given)
