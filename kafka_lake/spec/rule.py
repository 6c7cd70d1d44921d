"""What a topic's rows must keep: the setting ``rules`` as it is declared, and its rules one by one. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass as plain_dataclass
from typing import Literal, get_args

from pydantic import Field
from pydantic.dataclasses import dataclass

OnFailure = Literal["dead_letter", "fail", "warn"]
ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)
Kind = Literal[
    "not_null", "accepted_values", "range", "pattern", "expression", "unique", "foreign_key", "row_count", "null_share",
    "volume", "check",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
OF_ROWS: tuple[Kind, ...] = (
    "not_null", "accepted_values", "range", "pattern", "expression", "unique", "foreign_key",
)  # fmt: skip
"""Kinds that a row keeps or breaks; the others are about a commit as a whole."""
BY_ARROW: tuple[Kind, ...] = ("not_null", "accepted_values", "range", "pattern")
"""Kinds that a row keeps or breaks by the values of one column. Arrow asks these, Spark asks all others."""
MOST_BY_ARROW = 62
"""A table has at most so many of them: what a row breaks is a number of 64 bits."""
RULE_CLASS = "rule:"
"""How the classes of dead letters begin that broke a rule."""
RULE_CHECK = "rule_"
"""How the names of the rules' checks begin."""

Value = bool | int | float | str
WHOLE_TABLE = "table"
"""With `within`: all rows that the table has."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_]+")
_LONGEST_NAME = 60


@dataclass(frozen=True)
class AcceptedValues:
    """A column has one of some values."""

    column: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Range:
    """A column is from a least to a greatest value, both of them allowed: numbers, or ISO 8601 dates and times."""

    column: str
    min: int | float | str | None = None
    max: int | float | str | None = None


@dataclass(frozen=True)
class Pattern:
    """A column has text in which a regular expression of RE2 finds something."""

    column: str
    regex: str


@dataclass(frozen=True)
class ForeignKey:
    """What columns have is in columns of a row of another table of the catalog."""

    columns: tuple[str, ...]
    table: str
    to: tuple[str, ...] = ()

    @property
    def target(self) -> tuple[str, ...]:
        """Return the columns of the other table."""
        return self.to or self.columns


@dataclass(frozen=True)
class RowCount:
    """A commit has so many rows, both bounds allowed."""

    min: int | None = None
    max: int | None = None


@dataclass(frozen=True)
class NullShare:
    """A column is null in at most this share of a commit's rows."""

    column: str
    max: str


@dataclass(frozen=True)
class Volume:
    """The last hour or day brought about as many rows as those of the days before."""

    per: Literal["hour", "day"] = "day"
    days: int = 14
    deviations: float = 4.0


@dataclass(frozen=True)
class RuleEntry:
    """One entry of ``rules``: exactly one kind of rule, and what is to be done where it is broken."""

    not_null: tuple[str, ...] = Field(
        default=(), description="Columns that are never null; a rule for each.", examples=[["order_id", "store"]]
    )
    accepted_values: AcceptedValues | None = Field(
        default=None,
        description="A column has one of some values.",
        examples=[{"column": "status", "values": ["new", "paid"]}],
    )
    range: Range | None = Field(
        default=None,
        description="A column is from `min` to `max`, both allowed, one may be left out: numbers, or dates and times "
        "as text.",
        examples=[{"column": "amount", "min": 0, "max": 10000}],
    )
    pattern: Pattern | None = Field(
        default=None,
        description="In the text of a column, a regular expression of RE2 finds something. `^` and `$` bind it to the "
        "ends.",
        examples=[{"column": "email", "regex": "^[^@]+@[^@]+$"}],
    )
    expression: str | None = Field(
        default=None,
        description="A condition of Spark SQL over the row's columns, `_kafka` among them.",
        examples=["total >= tax"],
    )
    unique: tuple[str, ...] = Field(
        default=(),
        description="Columns that together are different in all rows of a commit. The first row by Kafka's partition "
        "and offset stays.",
        examples=[["order_id"]],
    )
    within: str | None = Field(
        default=None,
        description="With unique: the rows of earlier commits that count too. A duration: those that are at most so "
        "much older, by Kafka's timestamp, than the oldest row of the commit. `table`: all of them.",
        examples=["7d", "table"],
    )
    foreign_key: ForeignKey | None = Field(
        default=None,
        description="What `columns` have is in the columns `to` of a row of another `table` of the catalog; `to` is "
        "`columns` by default. A row with a null among them passes.",
        examples=[{"columns": ["store"], "table": "lake.stores", "to": ["id"]}],
    )
    row_count: RowCount | None = Field(
        default=None,
        description="A commit has from `min` to `max` rows, both allowed, one may be left out.",
        examples=[{"min": 1}],
    )
    null_share: NullShare | None = Field(
        default=None,
        description="A column is null in at most this share of a commit's rows.",
        examples=[{"column": "coupon", "max": "5%"}],
    )
    volume: Volume | None = Field(
        default=None,
        description="The last hour or day (`per`, in UTC) that is over has about as many rows as the same hours, or "
        "the days, of the last `days`: their median, and `deviations` standard deviations to either side. Warns.",
        examples=[{"per": "hour", "days": 14}],
    )
    check: str | None = Field(
        default=None,
        description="A function of your own, as module:function. It gets the rows of a commit as a Spark DataFrame and "
        "returns `kafka_lake.CheckResult`s.",
        examples=["my_checks:orders"],
    )
    name: str | None = Field(
        default=None,
        description="Name of the rule in its check, in dead letters and in errors. By default its kind and what it is "
        "about, as `range_amount`.",
        examples=["total_covers_tax"],
    )
    on_failure: OnFailure | None = Field(
        default=None,
        description="What a broken rule does. dead_letter: the row goes to the dead-letter table. fail: nothing is "
        "published, and the run fails. warn: all is published, and the check warns. By default dead_letter for rules "
        "of rows; those of a whole commit, which no single row breaks, have fail; volume has warn.",
    )
    fail_above: int | str | None = Field(
        default=None,
        description="How many rows of a commit may break the rule before nothing is published and the run fails: a "
        "count or a share; up to 10 rows are never too large a share. By default 5%, with on_failure dead_letter.",
        examples=["20%"],
    )

    def kinds(self) -> list[Kind]:
        """Return the kinds of rule that the entry has; one, if it is right."""
        return [kind for kind in KINDS if getattr(self, kind) not in (None, ())]


@plain_dataclass(frozen=True)
class Rule:
    """One rule of a topic.

    Args:
        name: Its name, unique among the topic's.
        columns: The columns that it is about; none for an expression and for a count of rows.
        entry: Where it comes from, with what the kind asks for.
        on_failure: What it does where it is broken.
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
        """Return whether a single row keeps it or breaks it."""
        return self.kind in OF_ROWS

    @property
    def said(self) -> str:
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
        if entry.volume is not None:
            given = entry.volume
            times = "the same hours" if given.per == "hour" else "those"
            return f"rows of the last {given.per} are about as many as of {times} of the last {given.days} days"
        if entry.null_share is not None:
            return f"{column} is null in at most {entry.null_share.max} of the rows"
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
    others: OnFailure = "warn" if kind == "volume" else "fail"
    on_failure = entry.on_failure or ("dead_letter" if kind in OF_ROWS else others)
    limit = entry.fail_above
    if limit is None and on_failure == "dead_letter":
        limit = fail_above
    given = getattr(entry, kind)
    if kind == "volume" and entry.volume is not None and entry.name is None:
        yield Rule(f"volume_{entry.volume.per}", kind, (), entry, on_failure=on_failure, fail_above=None)
        return
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


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
