"""What a topic's rows must keep: the setting ``rules`` as it is declared, and its rules one by one. Pure."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from pydantic import Field, StrictBool, StrictFloat, StrictInt

from kafka_lake.common.text import limit_of, seconds_of
from kafka_lake.errors import ConfigurationError
from kafka_lake.spec.settings import Limit, OptionalText, Problem, Settings, Text, TextOrList

OnFailure = Literal["dead_letter", "fail", "warn"]
Kind = Literal[
    "not_null", "accepted_values", "range", "pattern", "expression", "unique", "foreign_key", "row_count", "check",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
OF_ROWS: tuple[Kind, ...] = (
    "not_null", "accepted_values", "range", "pattern", "expression", "unique", "foreign_key",
)  # fmt: skip
"""Kinds that each row passes or fails; all other kinds are about a whole commit."""
BY_ARROW: tuple[Kind, ...] = ("not_null", "accepted_values", "range", "pattern")
"""Kinds that a row passes or fails by the values of one column. Arrow evaluates these, Spark all other kinds."""
MOST_BY_ARROW = 62
"""A table has at most so many of them: what a row breaks is a number of 64 bits."""
RULE_CLASS = "rule:"
"""How the classes of dead letters begin that broke a rule."""
RULE_CHECK = "rule_"
"""How the names of the rules' checks begin."""

WHOLE_TABLE = "table"
"""With `within`: all rows that the table has."""
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_REFERENCE = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
_TEXT_IN_SQL = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL)
_NO_NAME = re.compile(r"[^A-Za-z0-9_]+")
_LONGEST_NAME = 60

# YAML reads 5 as a number and "5" as text: a column of the other type has no such value.
Value = StrictBool | StrictInt | StrictFloat | str
Bound = StrictInt | StrictFloat | str | None


class RuleKind(Settings):
    """The settings of one kind of rule."""

    @classmethod
    def unknown(cls, key: str) -> str:
        """Return why a key isn't a setting of the kind: it may be a setting of the rule."""
        if key in RuleEntry.model_fields:
            return "is a setting of the rule. Write it beside the kind, not in it"
        return super().unknown(key)

    def problems(self) -> Iterator[Problem]:
        """Give invalid settings."""
        yield from (((), text) for text in self._problems())

    def _problems(self) -> Iterator[str]:
        yield from ()


class AcceptedValues(RuleKind):
    """A column has one of some values."""

    column: Text
    values: tuple[Value, ...]

    def _problems(self) -> Iterator[str]:
        if not self.values:
            yield "values: is empty, so that every row would break it"
        elif any(map(_is_nan, self.values)):
            yield "values: NaN equals no value, not even NaN. Remove it"


class Range(RuleKind):
    """A column is from a least to a greatest value, both of them allowed: numbers, or ISO 8601 dates and times."""

    column: Text
    min: Bound = None
    max: Bound = None

    def _problems(self) -> Iterator[str]:
        least, greatest = self.min, self.max
        bounds: list[Any] = [_time_of(bound) or bound for bound in (least, greatest)]
        if any(map(_is_nan, (least, greatest))):
            yield "NaN is not a bound: no range contains it"
        elif least is None and greatest is None:
            yield "range never fails. Give min: or max:"
        elif least is not None and greatest is not None and isinstance(least, str) != isinstance(greatest, str):
            yield f"min: {least!r} and max: {greatest!r} have different types"
        elif untimed := [bound for bound in bounds if isinstance(bound, str)]:
            yield f"{untimed[0]!r} is not an ISO 8601 date or time. Write numbers without quotes"
        elif None not in bounds and bounds[0] > bounds[1]:
            yield f"min: {least} is above max: {greatest}, so that every row would break it"


class Pattern(RuleKind):
    """A column has text in which a regular expression of RE2 finds something."""

    column: Text
    regex: Text

    def _problems(self) -> Iterator[str]:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            pc.match_substring_regex(pa.array([""]), self.regex)
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            reason = str(error).removeprefix("Invalid regular expression: ")
            yield f"regex: {self.regex!r} isn't a regular expression of RE2: {reason}."
        if not self.regex:
            yield "regex: is empty, which every text matches."


class ForeignKey(RuleKind):
    """What columns have is in columns of a row of another table of the catalog."""

    columns: TextOrList
    table: Text
    to: TextOrList = ()

    @property
    def target(self) -> tuple[str, ...]:
        """Return the columns of the other table."""
        return self.to or self.columns

    def _problems(self) -> Iterator[str]:
        if not self.columns:
            yield "columns: is empty, so no row can be looked up"
        elif self.to and len(self.to) != len(self.columns):
            yield f"to: has {len(self.to)} columns, and columns: has {len(self.columns)}"
        if [bool(part) for part in self.table.split(".")] != [True, True]:
            yield f"table: {self.table!r} doesn't name a table. Write namespace.table"


class RowCount(RuleKind):
    """A commit has so many rows, both bounds allowed."""

    min: int | None = None
    max: int | None = None

    def _problems(self) -> Iterator[str]:
        if not self.min and self.max is None:
            yield "row_count never fails. Give min: or max:"
        if (self.min or 0) < 0 or (self.max is not None and self.max < (self.min or 0)):
            yield f"min: {self.min} to max: {self.max} contains no number of rows"


class RuleEntry(Settings):
    """An entry of ``rules``: exactly one kind of rule, and what a failure does."""

    not_null: TextOrList = Field(
        default=(),
        description="The columns are not null. Each column is a rule. NaN and empty text are values.",
        examples=[["order_id", "store"]],
    )
    accepted_values: AcceptedValues | None = Field(
        default=None,
        description="The column equals one of the values. NaN equals nothing.",
        examples=[{"column": "status", "values": ["new", "paid"]}],
    )
    range: Range | None = Field(
        default=None,
        description="The column is between `min` and `max`, inclusive; one may be omitted. In `float` and `double` "
        "columns, limits are rounded to the type; NaN is in no range. Quote dates and times; without a zone they are "
        "UTC.",
        examples=[{"column": "amount", "min": 0, "max": 10000}],
    )
    pattern: Pattern | None = Field(
        default=None,
        description="The regular expression matches somewhere in the column's text, in [RE2's "
        "syntax](https://github.com/google/re2/wiki/Syntax).",
        examples=[{"column": "email", "regex": "^[^@]+@[^@]+$"}],
    )
    expression: OptionalText = Field(
        default=None,
        description="The Spark SQL condition is true, with [functions that work on values](security-model.md#sql).",
        examples=["total >= tax"],
    )
    unique: TextOrList = Field(
        default=(),
        description="No other row of the commit has the same values. Of equal rows, the first by Kafka partition and "
        "offset stays.",
        examples=[["order_id"]],
    )
    within: OptionalText = Field(
        default=None,
        description="With `unique`: also compare with rows of earlier commits. `table`: all rows. A duration: rows at "
        "most this much older than the commit's oldest row.",
        examples=["7d", "table"],
    )
    foreign_key: ForeignKey | None = Field(
        default=None,
        description="Another table has a row with the same values in `to` (default: the same columns). Rows with a "
        "null in these columns pass. If the other row arrives later, the row is a dead letter: replay it, or use "
        "`warn`.",
        examples=[{"columns": ["store"], "table": "lake.stores", "to": ["id"]}],
    )
    row_count: RowCount | None = Field(
        default=None,
        description="The commit has `min` to `max` rows, inclusive; one may be omitted.",
        examples=[{"min": 1}],
    )
    check: OptionalText = Field(
        default=None,
        description="Your own function, as `module:function`. See [your own checks](#your-own-checks).",
        examples=["my_checks:orders"],
    )
    name: OptionalText = Field(
        default=None,
        description="Name of the rule in checks, dead letters and errors. Default: kind and column, such as "
        "`range_amount`.",
        examples=["total_covers_tax"],
    )
    on_failure: OnFailure | None = Field(
        default=None,
        description="`dead_letter` moves the row to the dead-letter table. `fail` publishes nothing and fails the "
        "run. `warn` publishes all rows. Default: `dead_letter`; for `row_count` and `check`, `fail`.",
    )
    fail_above: Limit = Field(
        default=None,
        description="With `dead_letter`: number or share of a commit's rows that may break the rule before the run "
        "fails. With a share, ten rows are always allowed. Default: 5%.",
        examples=["20%"],
    )

    def kinds(self) -> list[Kind]:
        """Return the kinds of rule that the entry has; one, if it is right."""
        return [kind for kind in KINDS if getattr(self, kind) not in (None, ())]

    def problems(self) -> Iterator[Problem]:
        """Yield the problems of the entry: it needs exactly one kind, and settings that have an effect."""
        yield from (((), text) for text in self._problems())

    def _problems(self) -> Iterator[str]:
        kinds = self.kinds()
        if len(kinds) != 1:
            found = f"has {', '.join(kinds)}" if kinds else "has no kind"
            yield f"{found}. Write exactly one of {', '.join(KINDS)}"
            return
        if self.name is not None and not _NAME.match(self.name):
            yield f"name: {self.name!r} can't be a name. Use letters, digits and underscores"
        if self.expression is not None:
            yield from _expression_problems(self.expression)
        if self.within is not None:
            yield from self._within_problems(self.within)
        if self.check is not None and not _REFERENCE.match(self.check):
            yield f"check: {self.check!r} isn't a Python function. Write module:function"
        yield from self._failure_problems(kinds[0])

    def _within_problems(self, within: str) -> Iterator[str]:
        if not self.unique:
            yield "within: applies only to unique. Remove it"
        elif within != WHOLE_TABLE:
            try:
                seconds_of(within)
            except ConfigurationError as error:
                yield f"within: {error} Write table for all rows"

    def _failure_problems(self, kind: Kind) -> Iterator[str]:
        is_of_rows = kind in OF_ROWS
        if not is_of_rows and self.on_failure == "dead_letter":
            yield f"on_failure: dead_letter has no effect: no single row breaks {kind}. Set fail or warn"
        if self.fail_above is None:
            return
        if not is_of_rows:
            yield f"fail_above: has no effect: no single row breaks {kind}. Remove it"
        elif self.on_failure == "fail":
            yield "fail_above: has no effect, since any row that breaks the rule fails the run"
        elif limit_of(self.fail_above, "fail_above") == 0:
            yield f"fail_above: {self.fail_above} allows no row to break the rule. Set on_failure: fail instead"


@dataclass(frozen=True)
class Rule:
    """One rule of a topic.

    Args:
        fail_above: How many rows may break it, as the settings have it; None for any number.
    """

    name: str
    kind: Kind
    columns: tuple[str, ...]
    entry: RuleEntry
    on_failure: OnFailure
    fail_above: int | str | None

    @property
    def check(self) -> str:
        """Return the name of the rule's check."""
        return f"{RULE_CHECK}{self.name}"

    @property
    def error_class(self) -> str:
        """Return the class of the dead letters that it makes; empty if it makes none."""
        return f"{RULE_CLASS}{self.name}" if self.on_failure == "dead_letter" else ""

    @property
    def is_of_rows(self) -> bool:
        """Return whether each row passes or fails it."""
        return self.kind in OF_ROWS

    @property
    def is_of_single_rows(self) -> bool:
        """Return whether a row passes or fails it regardless of the table's other rows."""
        return self.is_of_rows and self.kind != "unique"

    @property
    def is_in_tasks(self) -> bool:
        """Return whether the tasks that decode evaluate it, on Arrow batches."""
        return self.kind in BY_ARROW

    @property
    def counts_rows(self) -> bool:
        """Return whether it is about the number of rows alone."""
        return self.kind == "row_count"

    @property
    def description(self) -> str:
        """Return what it asks for, in words: columns and settings, nothing of any row."""
        entry, column = self.entry, ", ".join(self.columns)
        if entry.accepted_values is not None:
            return f"{column} is one of {', '.join(map(_shown, entry.accepted_values.values))}"
        if entry.range is not None:
            return f"{column} is {_from_to(entry.range.min, entry.range.max)}"
        if entry.pattern is not None:
            return f"{column} matches {entry.pattern.regex}"
        if entry.row_count is not None:
            return f"the number of rows is {_from_to(entry.row_count.min, entry.row_count.max)}"
        if entry.foreign_key is not None:
            return f"{column} is in {entry.foreign_key.table} ({', '.join(entry.foreign_key.target)})"
        if entry.check is not None:
            return f"the rows pass {entry.check}"
        if self.kind == "unique":
            return f"{column} is different in each row of {_among(entry.within)}"
        return f"{column} is not null" if self.kind == "not_null" else str(entry.expression)


def rules_of(entries: Iterable[RuleEntry], fail_above: int | str | None = None) -> tuple[Rule, ...]:
    """Return the rules that entries stand for, in their order, with all defaults filled in.

    >>> [rule.name for rule in rules_of([RuleEntry(not_null=("id", "store")), RuleEntry(expression="total >= tax")])]
    ['not_null_id', 'not_null_store', 'expression_total_tax']
    """
    return tuple(rule for entry in entries for rule in _of_entry(entry, fail_above))


def _of_entry(entry: RuleEntry, fail_above: int | str | None) -> Iterator[Rule]:
    (kind,) = entry.kinds()
    on_failure = entry.on_failure or ("dead_letter" if kind in OF_ROWS else "fail")
    limit = entry.fail_above
    if limit is None and on_failure == "dead_letter":
        limit = fail_above
    given = getattr(entry, kind)
    every: list[tuple[str, ...]]
    if kind == "not_null":
        every = [(column,) for column in given]
    elif kind == "unique":
        every = [given]
    elif isinstance(given, ForeignKey):
        every = [given.columns]
    else:
        every = [(given.column,) if hasattr(given, "column") else ()]
    for columns in every:
        about = (given,) if kind == "expression" else columns
        if kind == "check":
            about = (given.rpartition(":")[2],)
        name = entry.name or _derived(kind, about)
        if entry.name and len(every) > 1:
            name = f"{entry.name}_{_plain(*columns)}"
        yield Rule(name=name, kind=kind, columns=columns, entry=entry, on_failure=on_failure, fail_above=limit)


def _derived(kind: str, about: tuple[str, ...]) -> str:
    return "_".join([kind, *([_plain(*about)] if about else [])])[:_LONGEST_NAME].rstrip("_")


def _plain(*texts: str) -> str:
    return _NO_NAME.sub("_", "_".join(texts)).strip("_")


def _from_to(least: object, greatest: object) -> str:
    if least is None:
        return f"at most {greatest}"
    return f"at least {least}" if greatest is None else f"from {least} to {greatest}"


def _among(within: str | None) -> str:
    if within is None:
        return "a commit"
    return "the table" if within == WHOLE_TABLE else f"a commit, and in the {within} before it"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _time_of(text: object) -> datetime | None:
    """Return a bound as a time, in UTC if it has no zone; None if it isn't a time."""
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
        return time.replace(tzinfo=UTC) if time and time.tzinfo is None else time
    except ValueError:
        return None


def _expression_problems(text: str) -> Iterator[str]:
    bare = _TEXT_IN_SQL.sub("''", text).strip()
    if not bare:
        yield "expression: is empty"
    elif bare.lower() in ("true", "false", "null"):
        yield f"expression: {text} is the same for every row"
    elif re.search(r"\bselect\b", bare, re.IGNORECASE):
        yield "expression: a condition on one row can't contain a query"
