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
    Limit,
    OptionalText,
    Problem,
    Properties,
    Settings,
    ShortFor,
    Text,
    TextMap,
    TextOrList,
    either,
    is_template,
    one_of,
)
from kafka_lake.spec.topic_table import InDocuments, RouteByKind, TableName, When


class Where(Settings):
    """One condition on a record: a field, a header, a schema or SQL."""

    field: Annotated[Text, Field(min_length=1)] | None = Field(
        default=None,
        description="A field of a JSON value; a dot leads into an object. Its text is compared, as JSON has it.",
        examples=["type"],
    )
    header: Annotated[Text, Field(min_length=1)] | None = Field(
        default=None, description="Name of a header; its bytes are compared as text."
    )
    schema_: Annotated[TextOrList, Field(min_length=1)] | None = Field(
        default=None,
        alias="schema",
        description="Names of the value's schema in the registry, one or a list; `*` stands for any text.",
        examples=["shop.Order"],
    )
    sql: Annotated[Text, Field(min_length=1)] | None = Field(
        default=None,
        description="SQL condition on the record's columns: key, value, headers, partition, offset, timestamp.",
        examples=["key IS NOT NULL"],
    )
    equals: Annotated[TextOrList, Field(min_length=1)] | None = Field(
        default=None,
        description="Needed with `field` or `header`: the value, or a list of values.",
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
            yield ("equals",), needed or f"has no effect with {kinds[0].rstrip('_')}:. Leave it out"
        elif self.field is not None and not is_field(self.field):
            yield ("field",), f"{self.field!r} can't name a field here. Write source.table for nested ones, or use sql:"

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

_PART = re.compile(next(part.pattern for part in get_args(TableName) if isinstance(part, InDocuments)))


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
        raise ValueError(f"a name of {len(longest.encode())} bytes is too long. 255 is the most")
    return parts


def _name(text: str | None) -> str | None:
    if text is not None and not is_template(text):
        table_name(text)
    return text


class Evolution(Settings):
    """How the columns may change: text alone is the mode."""

    mode: EvolutionMode = Field(
        default="evolve",
        description="What new fields and wider types do: evolve the table, freeze it (such a run fails before it "
        "publishes), or ignore_new (fields without a column are left out, and reported).",
    )
    on_incompatible: OnIncompatible = Field(
        default="dead_letter",
        description="What to do with values that their column can't take: dead letters, fail the run, or a new_column "
        "`name__v2` beside it, where the columns are inferred.",
    )


class _Limited(Settings):
    limit: Limit = Field(
        default=None,
        description="How many of them a run may have before it fails: a count or a share. Without it any number.",
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
        description="Format json: Spark DDL of the columns. Without it the columns are inferred from the records and "
        "evolve.",
        examples=["order_id bigint not null, items array<string>, ordered_at timestamp"],
    )
    renames: TextMap = Field(
        default_factory=dict,
        description="Columns that get a new name, as `old: new`. The field id stays.",
        examples=[{"store": "store_id"}],
    )
    exclude_fields: TextOrList = Field(
        default=(),
        description="Fields of records that the table has no column for. With declared columns, those that only "
        "delete_when needs.",
        examples=[["search_vector"]],
    )
    metadata_column: Annotated[Text, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = Field(
        default="_kafka",
        description="Struct that says where a row came from; null for none.",
    )
    transform: OptionalText = Field(
        default=None,
        description="`module:function`, from DataFrame to DataFrame, one row for one row.",
        examples=["my_project.transforms:clean"],
    )
    partition_by: TextOrList = Field(
        default=(),
        description="Iceberg partition transforms.",
        examples=[["day(ordered_at)", "bucket(16, store_id)"]],
    )
    sort_by: TextOrList = Field(default=(), description="Columns within each file.", examples=[["ordered_at desc"]])
    properties: Properties = Field(
        default_factory=dict,
        description="Iceberg table properties of a new table. `location` is where its files shall be; by default a "
        "folder of its own, named after the table.",
        examples=[{"write.parquet.compression-codec": "zstd"}],
    )
    write: Write = Field(
        default_factory=lambda: Append(mode="append"),
        description="append: a row for each record. upsert: a row for each key, as its newest change left it. history: "
        "each version of each key's row.",
        examples=["append", {"mode": "upsert", "key": ["order_id"]}],
    )
    evolution: Annotated[Evolution, ShortFor("mode")] = Field(
        default_factory=Evolution,
        description="How the columns may change.",
        examples=["freeze", {"mode": "evolve", "on_incompatible": "new_column"}],
    )
    dead_letters: DeadLetters = Field(
        default_factory=KeepDeadLetters,
        description="What to do with records that fit no row: kept in a table, fail the run, or skipped (and counted).",
        examples=["fail", {"mode": "table", "limit": "5%"}],
    )
    rules: tuple[RuleEntry, ...] = Field(
        default=(),
        description="What rows must keep, asked of each commit before anyone can read it. See [rules](rules.md).",
        examples=[[{"not_null": ["order_id"]}]],
    )
    on_data_loss: Literal["fail", "continue"] = Field(
        default="fail",
        description="If Kafka no longer has what the table lacks: fail, or continue with what is left; the loss is "
        "recorded.",
    )
    freshness_limit: Duration | None = Field(
        default=None,
        description="How long a record may wait for its row, by its Kafka timestamp: the table's check `freshness` "
        "warns while one waits longer. A topic without new records is fresh.",
        examples=["5m"],
    )
    redact: Redact | None = Field(
        default=None,
        description="What Dagster's log and pages leave out of the values that they quote: what regular expressions "
        "(Python's) find, `all` values, or `none`. Class and offset of a dead letter are always shown. By default "
        "`all` if KAFKA_LAKE_SAMPLES is false, else `none`.",
        examples=[[r"\d{4}-\d{4}"], "all"],
    )
    maintenance: Maintenance | None = Field(
        default=None,
        description="How the table is kept fast: small files are compacted, and old snapshots expire. See "
        "[maintenance](maintenance.md#settings).",
        examples=[{"compact_every": 50, "expire_after": "30d"}, {"enabled": False}],
    )
    owners: TextOrList = Field(default=(), description="Owners, as Dagster shows them.")
    group: OptionalText = Field(default=None, description="Dagster's asset group; the namespace by default.")
    tags: TextMap = Field(
        default_factory=dict,
        description="Tags of the table's asset in Dagster, which selects by them, as in `tag:domain=sales`.",
        examples=[{"domain": "sales", "pii": "true"}],
    )
    description: OptionalText = Field(default=None, description="What the rows are.")

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
            "metadata_column": self.metadata_column,
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
        description="Name of the table, as `namespace.table`; the namespace is `lake` by default.",
        examples=["shop.orders"],
    )
    where: Where | None = Field(
        default=None,
        description="Which records the table takes. Without it: the records that no table with a condition takes.",
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
        description="Name of the table, as `namespace.table`; the namespace is `lake` by default, and the table is "
        "called after the topic.",
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
    """Tables that are made as values appear in records: of a field, a header, a schema or a source's table."""

    field: Annotated[Text, Field(min_length=1)] | None = Field(
        default=None, description="The field of a JSON value that has the value."
    )
    schema_name: bool = Field(
        default=False, description="Write true: the value is the name of the record's schema in the registry."
    )
    source_table: bool = Field(
        default=False, description="Write true: the value is the source's table by the envelope."
    )
    name: Text = Field(
        default="{value}",
        description="Template of the tables' names, as `namespace.table`: `{value}`, or its parts before and after "
        "the last dot, `{parent}` and `{name}`.",
        examples=["shop.raw_{value}"],
    )
    max_tables: int = Field(default=100, ge=1, le=500, description="How many values may have a table.")

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
            yield ("name",), f"{namespace!r} can't be the name of a namespace, and values choose none"

    @property
    def kinds(self) -> list[RouteByKind]:
        """Return what has the values; one, if the settings are right."""
        return [kind for kind in get_args(RouteByKind) if getattr(self, kind)]

    @property
    def template(self) -> tuple[str, str]:
        """Return the templates of namespace and table."""
        namespace, dot, table = self.name.rpartition(".")
        return (namespace if dot else NAMESPACE), table
