"""The settings of a topic's table."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator, field_validator

from kafka_lake.config.write import Append, Write, write_spec
from kafka_lake.errors import ConfigurationError
from kafka_lake.formats.redaction import check_mask
from kafka_lake.routing.by_value import template_problems
from kafka_lake.schema.evolution.model import EvolutionMode, OnIncompatible
from kafka_lake.schema.names import shortened
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.rule import RuleEntry
from kafka_lake.spec.settings import (
    Duration,
    Group,
    Limit,
    OptionalText,
    Owners,
    Problem,
    Settings,
    ShortFor,
    Tags,
    Text,
    TextMap,
    TextOrList,
    either,
    is_template,
    one_of,
)
from kafka_lake.spec.sql_text import changing
from kafka_lake.spec.topic_table import TABLE_NAME, RouteByKind, When


class Where(Settings):
    """One condition on a record: a field, a header, a schema or SQL."""

    field: Annotated[Text, Field(min_length=1)] | None = Field(
        default=None,
        description="Field of the JSON value, compared as text. Dots lead to nested fields.",
        examples=["type"],
    )
    header: Annotated[Text, Field(min_length=1)] | None = Field(default=None, description="Header, compared as text.")
    schema_: Annotated[TextOrList, Field(min_length=1)] | None = Field(
        default=None,
        alias="schema",
        description="Names of the value's registry schema, one or a list. `*` matches any text.",
        examples=["shop.Order"],
    )
    sql: Annotated[Text, Field(min_length=1)] | None = Field(
        default=None,
        description="Spark SQL condition on `key`, `value`, `headers`, `partition`, `offset` and `timestamp`.",
        examples=["key IS NOT NULL"],
    )
    equals: Annotated[TextOrList, Field(min_length=1)] | None = Field(
        default=None,
        description="Required with `field` or `header`: one value, or a list.",
        examples=["order", ["click", "view"]],
    )

    def problems(self) -> Iterator[Problem]:
        """Give what doesn't make one condition."""
        kinds = [kind for kind in _CONDITIONS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            found = " and ".join(kind.rstrip("_") for kind in kinds) or "none"
            yield (), f"has {found} of field:, header:, schema: and sql:. Write one"
        elif (kinds[0] in ("field", "header")) != (self.equals is not None):
            needed = f"is missing, the value or values of {kinds[0]}:" if self.equals is None else ""
            yield ("equals",), needed or f"has no effect with {kinds[0].rstrip('_')}:. Remove it"
        elif self.field is not None and not is_field(self.field):
            yield ("field",), f"{self.field!r} can't name a field here. Write source.table for nested ones, or use sql:"
        elif self.sql is not None and (name := changing(self.sql)):
            yield ("sql",), f"{name} gives other values each time, so that a record could be in no table. Remove it"

    def when(self) -> When:
        """Return the condition as the pipeline takes it."""
        values, schemas = tuple(self.equals or ()), tuple(self.schema_ or ())
        return When(field=self.field, header=self.header, sql=self.sql, values=values, schema=schemas)


_CONDITIONS = ("field", "header", "schema_", "sql")


def is_field(name: str) -> bool:
    """Return whether a text names a field, with dots before those of objects."""
    return all(name.split(".")) and not name.startswith("$") and not set("'[]*") & set(name)


NAMESPACE = "lake"
"""The namespace of a table whose name says none."""

_PART = re.compile(TABLE_NAME)


def table_name(text: str) -> tuple[str, str]:
    """Return namespace and table of a name, as settings have it.

    >>> table_name("shop.orders"), table_name("orders")
    (('shop', 'orders'), ('lake', 'orders'))
    """
    namespace, dot, table = text.rpartition(".")
    parts = (namespace if dot else NAMESPACE, table)
    if not all(map(_PART.match, parts)) or "." in parts[0]:
        raise ValueError(f"{text!r} can't be the name of a table. Write namespace.table, with letters, digits and _")
    if longest := next((part for part in parts if shortened(part) != part), None):
        raise ValueError(f"a name of {len(longest.encode())} bytes is too long. The maximum is 255")
    return parts


def _name(text: str | None) -> str | None:
    if text is not None and not is_template(text):
        table_name(text)
    return text


class Evolution(Settings):
    """How the columns may change: text alone is the mode."""

    mode: EvolutionMode = Field(
        default="evolve",
        description="New fields and wider types: `evolve` changes the table, `freeze` fails the run before it "
        "publishes, `ignore_new` leaves new fields out and reports them.",
    )
    on_incompatible: OnIncompatible = Field(
        default="dead_letter",
        description="Values that don't fit their column: `dead_letter`, `fail` the run, or `new_column` (stores them "
        "in `name__v2`; only for inferred columns).",
    )


class _Limited(Settings):
    limit: Limit = Field(
        default=None,
        description="Maximum number or share of dead letters in a run. With more, the run fails before it "
        "publishes the next commit.",
        examples=["5%"],
    )


class KeepDeadLetters(_Limited):
    """Records that fit no row are kept in a table of dead letters."""

    mode: Literal["table"] = "table"


class SkipDeadLetters(_Limited):
    """Records that fit no row are skipped, and counted."""

    mode: Literal["skip"]


class FailOnDeadLetters(Settings):
    """A record that fits no row fails the run."""

    mode: Literal["fail"]


_LETTERS: dict[str, type[Settings]] = {"table": KeepDeadLetters, "fail": FailOnDeadLetters, "skip": SkipDeadLetters}
_ANY_LETTERS: Any = either(*_LETTERS.values(), Literal[tuple(_LETTERS)])
DeadLetters = Annotated[_ANY_LETTERS, one_of("mode", _LETTERS, "table")]


def _all_or_patterns(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    if value in ("all", "none"):
        return value
    patterns = _PATTERNS.validate_python(value)
    if not patterns:
        raise ValueError("is empty. Write none, or leave it out")
    for pattern in patterns:
        if pattern.strip().lower() in ("", "all", "none"):
            raise ValueError(f"{pattern!r} would be a regular expression here. Write all or none, without a list")
        try:
            check_mask(pattern)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
    return patterns


_PATTERNS: TypeAdapter[tuple[str, ...]] = TypeAdapter(TextOrList)
Redact = Annotated[Literal["all", "none"] | tuple[str, ...] | str, WrapValidator(_all_or_patterns)]


class TableSettings(Settings):
    """What each table of a topic has for itself."""

    columns: OptionalText = Field(
        default=None,
        description="JSON: Spark DDL of the columns. Without it, columns are inferred from the records, and new "
        "fields are added.",
        examples=["order_id bigint not null, items array<string>, ordered_at timestamp"],
    )
    renames: TextMap = Field(
        default_factory=dict,
        description="Renames columns, as `old: new`. Iceberg's field ids stay.",
        examples=[{"store": "store_id"}],
    )
    exclude_fields: TextOrList = Field(
        default=(),
        description="Fields that get no column. With `columns`: declared columns that `delete_when` needs but the "
        "table doesn't.",
        examples=[["search_vector"]],
    )
    transform: OptionalText = Field(
        default=None,
        description="`module:function` that takes and returns a DataFrame, with one output row per input row.",
        examples=["my_project.transforms:clean"],
    )
    partition_by: TextOrList = Field(
        default=(),
        description="Iceberg partition transforms.",
        examples=[["day(ordered_at)", "bucket(16, store_id)"]],
    )
    sort_by: TextOrList = Field(
        default=(), description="Columns that rows are sorted by within each file.", examples=[["ordered_at desc"]]
    )
    properties: TextMap = Field(
        default_factory=dict,
        description="Iceberg table properties of a new table. `location` sets the folder of its files.",
        examples=[{"write.parquet.compression-codec": "zstd"}],
    )
    write: Write = Field(
        default_factory=lambda: Append(mode="append"),
        description="`append`: one row per record. `upsert`: the current row of each key. `history`: all versions of "
        "each key's row.",
        examples=["append", {"mode": "upsert", "key": ["order_id"]}],
    )
    evolution: Annotated[Evolution, ShortFor("mode")] = Field(
        default_factory=Evolution,
        description="How columns may change.",
        examples=["freeze", {"mode": "evolve", "on_incompatible": "new_column"}],
    )
    dead_letters: DeadLetters = Field(
        default_factory=KeepDeadLetters,
        description="What happens to records that can't become rows: `table` stores them in a dead-letter table, "
        "`skip` only counts them, `fail` fails the run.",
        examples=["fail", {"mode": "table", "limit": "5%"}],
    )
    rules: tuple[RuleEntry, ...] = Field(
        default=(),
        description="Conditions that each commit must meet before it is published. See [rules](rules.md).",
        examples=[[{"not_null": ["order_id"]}]],
    )
    on_data_loss: Literal["fail", "continue"] = Field(
        default="fail",
        description="If Kafka has lost unread records: `fail` the run, or `continue` and record the loss.",
    )
    freshness_limit: Duration | None = Field(
        default=None,
        description="The check `freshness` warns while an unread record is older than this, by Kafka timestamp.",
        examples=["5m"],
    )
    redact: Redact | None = Field(
        default=None,
        description="Values that Dagster hides: `all`, `none`, or matches of Python regular expressions. "
        "Default: `all` if `KAFKA_LAKE_SAMPLES` is false, otherwise `none`.",
        examples=[[r"\d{4}-\d{4}"], "all"],
    )
    maintenance: Maintenance | None = Field(
        default=None,
        description="Compaction of small files, and expiry of snapshots and rows. See "
        "[maintenance](maintenance.md#settings).",
        examples=[{"compact_every": 50, "expire_after": "30d"}, {"enabled": False}],
    )
    owners: Owners = Field(default=(), description="Owners in Dagster.")
    group: Group = Field(default=None, description="Asset group in Dagster. Default: the namespace.")
    tags: Tags = Field(
        default_factory=dict,
        description="Tags in Dagster, for selections such as `tag:domain=sales`.",
        examples=[{"domain": "sales", "pii": "true"}],
    )
    description: OptionalText = Field(default=None, description="Description of the table.")

    def problems(self) -> Iterator[Problem]:
        """Give the columns that several would become, of which a new table would keep one alone."""
        places = [(path.rpartition(".")[0], name) for path, name in self.renames.items()]
        for parent, name in dict.fromkeys(place for place in places if places.count(place) > 1):
            both = [path for path, to in self.renames.items() if (path.rpartition(".")[0], to) == (parent, name)]
            yield ("renames",), f"{' and '.join(both)} would both be {name}. Give one of them another name"

    def fields(self) -> dict[str, Any]:
        """Return the settings as fields of `TopicTable`, without the table's name."""
        dead_letters = self.dead_letters
        found = {
            "schema": self.columns,
            "renames": self.renames,
            "except_columns": self.exclude_fields,
            "transform": self.transform,
            "partition_by": self.partition_by,
            "sort_by": self.sort_by,
            "table_properties": self.properties,
            **write_spec(self.write),
            "evolution": self.evolution.mode,
            "on_incompatible": self.evolution.on_incompatible,
            "dead_letters": dead_letters.mode,
            "max_dead_letters": getattr(dead_letters, "limit", None),
            "rules": self.rules,
            "on_data_loss": self.on_data_loss,
            "max_age": self.freshness_limit,
        }
        if self.redact is not None:
            found["samples"] = self.redact != "all"
            found["mask"] = tuple(self.redact) if isinstance(self.redact, tuple) else ()
        return found


class Table(TableSettings):
    """A table of a topic."""

    name: Text = Field(
        description="Table name, as `namespace.table`. The default namespace is `lake`.",
        examples=["shop.orders"],
    )
    where: Where | None = Field(
        default=None,
        description="Condition for the records that the table takes. A table without `where` takes the records that "
        "no other table takes. See [conditions](many-tables.md#conditions).",
        examples=[{"field": "type", "equals": "order"}],
    )

    _is_a_name = field_validator("name")(_name)

    @property
    def identifier(self) -> tuple[str, str]:
        """Return namespace and table."""
        return table_name(self.name)


class OneTable(TableSettings):
    """The one table of a topic: text alone is its name."""

    name: OptionalText = Field(
        default=None,
        description="Table name, as `namespace.table`. The default namespace is `lake`; by default, the table is "
        "named after the topic.",
        examples=["shop.orders"],
    )

    _is_a_name = field_validator("name")(_name)

    @classmethod
    def unknown(cls, key: str) -> str:
        """Return what is wrong with a key: it may be one of several tables."""
        if key in Table.model_fields:
            return f"is for tables:, as in tables: [{{name: …, {key}: …}}]"
        return super().unknown(key)


class TablesBy(TableSettings):
    """Tables that are made as values appear in records: of a field, a schema or a source's table."""

    field: Annotated[Text, Field(min_length=1)] | None = Field(
        default=None, description="Field of the JSON value that determines the table."
    )
    schema_name: bool = Field(
        default=False, description="`true`: the name of the value's registry schema determines the table."
    )
    source_table: bool = Field(
        default=False, description="`true`: the source table of the change event determines the table."
    )
    name: Text = Field(
        default="{value}",
        description="Template for table names, as `namespace.table`. `{parent}` and `{name}` are the value's parts "
        "before and after its last dot.",
        examples=["shop.raw_{value}"],
    )
    max_tables: int = Field(default=100, ge=1, le=500, description="Maximum number of values that get a table.")

    def problems(self) -> Iterator[Problem]:
        """Give what can't be."""
        yield from super().problems()
        kinds = self.kinds
        if len(kinds) != 1:
            found = " and ".join(kinds) or "none"
            yield (), f"has {found} of {', '.join(get_args(RouteByKind))}. Write one, as in field: type"
            return
        if self.field is not None and not is_field(self.field):
            yield ("field",), f"{self.field!r} can't name a field here"
        namespace, table = self.template
        for problem in template_problems("name", table):
            yield (), problem
        if not _PART.match(namespace):
            yield ("name",), f"{namespace!r} can't be the name of a namespace, and values can't choose it"

    @property
    def kinds(self) -> list[RouteByKind]:
        """Return what has the values; one, if the settings are right."""
        return [kind for kind in get_args(RouteByKind) if getattr(self, kind)]

    @property
    def template(self) -> tuple[str, str]:
        """Return the templates of namespace and table."""
        namespace, dot, table = self.name.rpartition(".")
        return (namespace if dot else NAMESPACE), table
