"""The settings of a derived table, each with its type, default and documentation. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from kafka_lake.common.text import is_cron, seconds_of
from kafka_lake.config.rules import derived_rule_problems
from kafka_lake.errors import ConfigurationError
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.rule import Rule, RuleEntry, rules_of
from kafka_lake.spec.settings import (
    Group,
    OptionalText,
    Owners,
    Problem,
    Settings,
    Tags,
    Text,
    TextMap,
    TextOrList,
)
from kafka_lake.spec.sql_text import unsafe_condition, unsafe_query
from kafka_lake.spec.topic_table import TABLE_NAME

Write = Literal["append", "upsert", "aggregate", "replace"]
OnChange = Literal["fail", "forward", "rebuild"]
NEWS = "news"
"""The value of ``every`` for a table that is updated whenever an upstream table changes."""
NEVER = "never"
"""The value of ``every`` for a table whose runs other automation requests."""
Identifier = tuple[str, str]


def _as_mapping(value: object) -> object:
    if isinstance(value, str):
        value = [value]
    return {column: column for column in value} if isinstance(value, list | tuple) else value


_IN_JSON = {
    "anyOf": [
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "array", "items": {"type": "string"}},
        {"type": "string"},
    ]
}
Key = Annotated[dict[str, str], BeforeValidator(_as_mapping), WithJsonSchema(_IN_JSON)]
"""Columns, one or a list, or a mapping of columns to expressions."""

Name = Annotated[Text, StringConstraints(pattern=TABLE_NAME)]


class DerivedTable(Settings):
    """A table that a query computes from other tables. Definitions with invalid combinations don't load."""

    table: Name = Field(description="Table name.")
    sources: TextOrList = Field(
        alias="from",
        min_length=1,
        description="Upstream table, as `table` or `namespace.table`; several with `write: replace`. The query uses "
        "the last part of the name.",
        examples=[["orders"]],
    )
    write: Write = Field(
        description="`append`: adds the result of new upstream rows. `upsert`: the newest row of each key. "
        "`aggregate`: recomputes the keys of new rows. `replace`: recomputes everything.",
    )
    namespace: Name = Field(default="lake", description="Iceberg namespace.")
    join: TextOrList = Field(
        default=(),
        description="Tables that the query reads in their current state. Their changes don't update existing rows, "
        "except with `write: replace`.",
        examples=[["stores"]],
    )
    sql: OptionalText = Field(
        default=None, description="The query, in Spark SQL.", examples=["SELECT store_id, total FROM orders"]
    )
    transform: OptionalText = Field(
        default=None,
        description="Instead of `sql`: `module:function` from a dict of DataFrames by table name to one DataFrame.",
        examples=["my_project.tables:revenue"],
    )
    key: Key = Field(
        default_factory=dict,
        description="Columns of the result that identify a row (`upsert`) or a group of rows (`aggregate`). For "
        "`aggregate`, a mapping gives each column's expression over `from`.",
        examples=[{"hour": "date_trunc('hour', ordered_at)", "store_id": "store_id"}],
    )
    order_by: TextOrList = Field(
        default=(),
        description="For `upsert`: columns that decide which row of a key is the newest; then the Kafka offset.",
        examples=[["updated_at"]],
    )
    on_change: OnChange = Field(
        default="fail",
        description="If the query changed, or upstream rows were changed by other programs: `fail`, or `rebuild` "
        "everything in one commit. `forward` accepts a changed query and keeps old rows.",
    )
    every: Text = Field(
        default=NEWS,
        description="When the table is updated: `news` after each upstream change, a duration for at most once in "
        "that time, a cron expression of five fields, or `never` if an automation condition requests the runs.",
        examples=["5m", "0 * * * *"],
    )
    verify: int = Field(
        default=100,
        ge=0,
        description="Number of keys or records per commit that the audit recomputes from all upstream rows. If one "
        "differs, nothing is published. `0` switches this off.",
        examples=[1000, 0],
    )
    partition_by: TextOrList = Field(default=(), description="Iceberg partition transforms.", examples=[["day(hour)"]])
    sort_by: TextOrList = Field(
        default=(), description="Columns that rows are sorted by within each file.", examples=[["store_id"]]
    )
    table_properties: TextMap = Field(default_factory=dict, description="Iceberg table properties of a new table.")

    rules: tuple[RuleEntry, ...] = Field(
        default=(),
        description="[Rules](rules.md) for each commit, with `on_failure: fail` (default) or `warn`.",
        examples=[[{"not_null": ["store_id"]}, {"range": {"column": "revenue", "min": 0}, "on_failure": "warn"}]],
    )
    maintenance: Maintenance = Field(
        default=Maintenance(),
        description="Compaction and expiry, which the run does itself after a commit. See "
        "[maintenance](maintenance.md#settings).",
        examples=[{"compact_every": 50, "expire_after": "30d"}, {"enabled": False}],
    )
    owners: Owners = Field(default=(), description="Owners in Dagster.")
    group: Group = Field(default=None, description="Asset group in Dagster. Default: the namespace.")
    description: OptionalText = Field(default=None, description="Description of the table.")
    tags: Tags = Field(default_factory=dict, description="Tags in Dagster.")

    def problems(self) -> Iterator[Problem]:
        """Yield problems of combined settings, and of the query."""
        yield from _settings_problems(self)
        yield from ((("rules",), text) for text in derived_rule_problems(self.rules))
        yield from _key_problems(self)
        if self.sql is not None:
            yield from _text_problems(self, self.sql)

    @property
    def identifier(self) -> Identifier:
        """Return namespace and name of the table."""
        return self.namespace, self.table

    @property
    def identifiers(self) -> tuple[Identifier, ...]:
        """Return the tables that a run writes."""
        return (self.identifier,)

    @property
    def name(self) -> str:
        """Return the full name."""
        return ".".join(self.identifier)

    @property
    def upstream(self) -> dict[str, Identifier]:
        """Return the tables of ``from`` by their names in the query."""
        return self._by_name(self.sources)

    @property
    def joined(self) -> dict[str, Identifier]:
        """Return the tables of ``join`` by their names in the query."""
        return self._by_name(self.join)

    @property
    def at_most_every(self) -> float | None:
        """Return the least seconds between two runs; None if the sensor requests none."""
        try:
            return 0.0 if self.every == NEWS else seconds_of(self.every)
        except ConfigurationError:
            return None

    @property
    def cron(self) -> str | None:
        """Return the cron expression of the table's schedule; None if it has none."""
        return None if self.every == NEVER or self.at_most_every is not None else self.every

    @property
    def named_rules(self) -> tuple[Rule, ...]:
        """Return the rules. Derived tables have no dead letters, so the default is to fail."""
        return tuple(replace(rule, on_failure=rule.entry.on_failure or "fail") for rule in rules_of(self.rules))

    @property
    def is_incremental(self) -> bool:
        """Return whether a run computes only what new rows change."""
        return self.write != "replace"

    @property
    def is_append_only(self) -> bool:
        """Return whether rows never change."""
        return self.write == "append"

    @property
    def has_keys(self) -> bool:
        """Return whether a key identifies the rows."""
        return self.write in ("upsert", "aggregate")

    @property
    def keeps_newest(self) -> bool:
        """Return whether the newest row of each key is kept."""
        return self.write == "upsert"

    @property
    def is_row_wise(self) -> bool:
        """Return whether each row comes from one upstream row and names that row's record."""
        return self.write in ("append", "upsert")

    def _by_name(self, names: tuple[str, ...]) -> dict[str, Identifier]:
        split = (name.rpartition(".") for name in names)
        return {table: (namespace or self.namespace, table) for namespace, _, table in split}


def _settings_problems(spec: DerivedTable) -> Iterator[Problem]:
    if (spec.sql is None) == (spec.transform is None):
        yield (), "needs exactly one of sql: and transform:"
    if spec.cron is not None and not is_cron(spec.cron):
        why = f"{spec.every!r} is neither {NEWS} nor a duration nor a cron expression. Write 5m, or '0 * * * *'"
        yield ("every",), why
    names = [source.rpartition(".")[2].lower() for source in (*spec.sources, *spec.join)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield (), f"from: and join: have {twice[0]} twice, and the query couldn't distinguish them. Remove one"
    if spec.has_keys and not spec.key:
        yield ("write",), f"{spec.write} needs key:, which identifies rows"
    if spec.key and not spec.has_keys:
        yield ("key",), f"has no effect with write: {spec.write}. Remove it"
    if spec.order_by and not spec.keeps_newest:
        yield ("order_by",), f"has no effect with write: {spec.write}. Remove it"
    if not spec.is_incremental and spec.on_change == "forward":
        yield ("on_change",), "forward has no effect with write: replace, which recomputes everything each time"
    if spec.is_incremental and len(spec.sources) > 1:
        many = f"{spec.write} takes one table under from:, but there are {len(spec.sources)}"
        yield ("write",), f"{many}. Put lookup tables under join:, or use write: replace"
    if spec.maintenance.row_retention:
        yield ("maintenance", "row_retention"), "isn't supported for derived tables. Remove it"
    if spec.maintenance.verify:
        why = "compares a table with its topic, which a derived table doesn't have. Remove it"
        yield ("maintenance", "verify"), why


def _key_problems(spec: DerivedTable) -> Iterator[Problem]:
    if not spec.key:
        return
    from sqlglot import exp

    from kafka_lake.config.query import parsed_key

    for name, text in spec.key.items():
        place = ("key", name)
        if spec.keeps_newest and text != name:
            yield place, "has an expression. With write: upsert, list columns of the result"
        try:
            tree = parsed_key(name, text)
        except ConfigurationError as error:
            yield ("key",), str(error).removeprefix("key: ")
            continue
        if unsafe := unsafe_condition(text):
            yield place, f"{text}: {unsafe}"
        elif tree.find(exp.Query, exp.AggFunc, exp.Window):
            yield place, f"{text}: isn't an expression over the columns of one row"


def _text_problems(spec: DerivedTable, sql: str) -> Iterator[Problem]:
    from kafka_lake.config.query import parsed, result_columns, tables_read

    try:
        query = parsed(sql)
        if unsafe := unsafe_query(sql):
            yield ("sql",), unsafe
            return
        yield from _names_problems(spec, tables_read(query))
    except ConfigurationError as error:
        yield ("sql",), str(error).removeprefix("sql: ")
        return
    columns = result_columns(query)
    for setting, named in (("key", spec.key), ("order_by", spec.order_by)):
        if columns is not None and (missing := [column for column in named if column.lower() not in columns]):
            yield (setting,), f"{missing[0]} isn't a column of the result. Select it under that name"


def _names_problems(spec: DerivedTable, read: set[str]) -> Iterator[Problem]:
    known = {name.lower(): name for name in (*spec.upstream, *spec.joined)}
    for name in sorted(read - set(known)):
        bare = known.get(name.rpartition(".")[2])
        remedy = f"Write {bare}, its name in queries" if bare else "Add it to one of them"
        yield ("sql",), f"reads {name}, which is neither in from: nor in join:. {remedy}"
    for name in sorted(set(known) - read):
        yield ("sql",), f"doesn't read {known[name]}. Remove it from from: and join:"
