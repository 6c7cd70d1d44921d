"""A rule that Spark asks as a condition on a table's rows: true where it is kept, null where nothing can be said."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.sql_text import unsafe_condition
from kafka_lake.errors import ConfigurationError
from kafka_lake.executors.writing.rules import Path
from kafka_lake.ingest.rule import Rule
from kafka_lake.ingest.rules.referred import Referred
from kafka_lake.ingest.rules.row_rules import cant_be_asked, find
from kafka_lake.lake.catalog import quoted

_UNRESOLVED = re.compile(r"with name (`.+?`(?:\.`.+?`)*) cannot be resolved|No such struct field (`.+?`)")


@dataclass(frozen=True)
class Condition:
    """A rule that can be asked.

    Args:
        kept: Whether a row keeps it; null where nothing can be said.
        keys: Of a `unique`: its columns.
        refers: Of a `foreign_key`: its columns. Whether a row keeps the rule, a join tells; `kept` is true where
            nothing is null.
        unknown: Columns that it names and the table doesn't have.
    """

    rule: Rule
    kept: Column
    keys: tuple[Column, ...] = ()
    refers: tuple[Column, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rows:
    """What rules are asked of.

    Args:
        subject: The topic or table, for errors.
        declared: Whether the settings declare all columns: then one that isn't there never comes.
        untold: The column that names those which a row doesn't tell; None if each row tells all of them.
        tables: Those that foreign keys refer to.
    """

    subject: str
    frame: DataFrame
    declared: bool
    untold: str | None = None
    tables: Mapping[str, Referred] = field(default_factory=dict)

    def condition(self, rule: Rule) -> Condition:
        """Return what to ask for a rule.

        Raises:
            ConfigurationError: If it names a column that can't be there, or asks of one what its type doesn't allow.
        """
        if rule.kind == "expression":
            return self._expression(rule)
        if rule.kind == "row_count":
            return Condition(rule, F.lit(True))
        found = [find(self.frame.schema, name) for name in rule.columns]
        unknown = tuple(name for name, each in zip(rule.columns, found, strict=True) if each is None)
        if unknown and self.declared:
            raise self._refused(rule, f"the table has no column {', '.join(unknown)}")
        columns = [F.lit(None) if each is None else column_at(each[0]) for each in found]
        if rule.kind == "null_share":
            there = columns[0].isNotNull()
            if self.untold is not None and found[0] is not None:
                there = F.when(~F.array_contains(F.col(self.untold), found[0][0][0]), there)
            return Condition(rule, there, unknown=unknown)
        there = F.when(reduce(and_, [column.isNotNull() for column in columns]), F.lit(True))
        keys = () if unknown else tuple(columns)
        if rule.kind == "unique":
            return Condition(rule, there, keys=keys, unknown=unknown)
        if keys:
            self._check_types(rule, [each[1] for each in found if each is not None])
        return Condition(rule, there, refers=keys, unknown=unknown)

    def _check_types(self, rule: Rule, kinds: Sequence[T.DataType]) -> None:
        """Refuse a foreign key whose columns can't be compared with those of the other table."""
        given = rule.entry.foreign_key
        assert given is not None, "the caller has looked"
        others = {each.name.lower(): each.dataType for each in self.tables[given.table].rows.schema}
        if missing := [name for name in given.target if name.lower() not in others]:
            raise self._refused(rule, f"table {given.table} has no column {', '.join(missing)}")
        for name, kind, target in zip(rule.columns, kinds, given.target, strict=True):
            other = others[target.lower()]
            numbers = isinstance(kind, T.NumericType) and isinstance(other, T.NumericType)
            if not numbers and kind.simpleString() != other.simpleString():
                here, there = kind.simpleString(), other.simpleString()
                raise self._refused(rule, f"{name} is {here}, and {target} of {given.table} is {there}")

    def _expression(self, rule: Rule) -> Condition:
        """Return a condition of the user's own; columns that the table doesn't have yet are null in it."""
        frame, unknown = self.frame, list[str]()
        if unsafe := unsafe_condition(str(rule.entry.expression)):
            raise self._refused(rule, f"{rule.entry.expression!r} is no condition on the rows: {unsafe}")
        while True:
            try:
                # A filter takes nothing but a condition on single rows; Connect looks at it when the schema is asked.
                frame.filter(F.expr(str(rule.entry.expression))).schema  # noqa: B018
            except AnalysisException as error:
                name, field = _unresolved(error)
                missing = [*unknown, *filter(None, [field])]
                if missing and name is None and not self.declared:
                    # Of what type it is when it comes, nobody knows: until then there is no answer.
                    return Condition(rule, F.lit(None).cast("boolean"), unknown=tuple(missing))
                if self.declared or name is None or name in frame.columns:
                    reason = str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")
                    problem = f"{rule.entry.expression!r} is no condition on the rows: {reason}"
                    raise self._refused(rule, problem) from error
                frame, unknown = frame.withColumn(name, F.lit(None)), [*unknown, name]
            else:
                return Condition(rule, F.expr(str(rule.entry.expression)), unknown=tuple(unknown))

    def _refused(self, rule: Rule, problem: str) -> ConfigurationError:
        names = [name for name in self.frame.columns if name != self.untold]
        return cant_be_asked(self.subject, rule, problem, names)


def column_at(path: Path) -> Column:
    """Return the column, or the field of a struct, at a path."""
    return F.col(".".join(map(quoted, path)))


def _unresolved(error: AnalysisException) -> tuple[str | None, str | None]:
    """Return the column, or the field of a struct, that an error says there is none of; nothing for other errors."""
    found = _UNRESOLVED.search(str(error))
    if found is None:
        return None, None
    name, field = found.groups()
    if field is not None or "`.`" in name:
        return None, (field or name.replace("`.`", ".")).strip("`")
    return name[1:-1].replace("``", "`"), None
