"""The group ``where:`` of a table: which records are the table's."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from kafka_lake.config.settings import Problem, Settings, either, near, refuse
from kafka_lake.config.text import Text, TextList, TextOrList
from kafka_lake.ingest.route import When

_NOT_IN_FIELDS = "'[]*"


class _Compared(Settings):
    """A text that is compared with some values. Abstract."""

    equals: Text | None = Field(default=None, description="The value.")
    in_: TextList | None = Field(default=None, alias="in", min_length=1, description="The values.")

    def problems(self) -> Iterator[Problem]:
        """Give what is wrong with the values."""
        if (self.equals is None) == (self.in_ is None):
            yield (), "needs equals: with a value or in: with a list. Write one of them"

    @property
    def values(self) -> tuple[str, ...]:
        """Return the values."""
        return tuple(self.in_ or ()) if self.equals is None else (self.equals,)


class FieldIs(_Compared):
    """A field of a JSON value has one of some values."""

    field: Text = Field(
        min_length=1,
        description="A field of a JSON value; a dot leads into an object. Its text is compared, as JSON has it.",
        examples=["type"],
    )

    def problems(self) -> Iterator[Problem]:
        """Give what is wrong with the values, or with the field's name."""
        yield from super().problems()
        if self.field.startswith("$"):
            yield ("field",), f"{self.field!r} is a path. Write it without $, as in source.table"
        elif not is_field(self.field):
            yield ("field",), f"{self.field!r} can't name a field here. Use sql: for such names"

    def when(self) -> When:
        """Return the condition as the pipeline takes it."""
        return When(field=self.field, values=self.values)


class HeaderIs(_Compared):
    """A header of the record has one of some values."""

    header: Text = Field(min_length=1, description="Name of a header; its bytes are compared as text.")

    def when(self) -> When:
        """Return the condition as the pipeline takes it."""
        return When(header=self.header, values=self.values)


class SchemaIs(Settings):
    """The value's schema in the registry has one of some names."""

    schema_: TextOrList = Field(
        alias="schema",
        min_length=1,
        description="Names of the value's schema in the registry, one or a list; `*` stands for any text.",
        examples=["shop.Order"],
    )

    def when(self) -> When:
        """Return the condition as the pipeline takes it."""
        return When(schema=tuple(self.schema_))


class Sql(Settings):
    """A condition of Spark SQL holds."""

    sql: Text = Field(
        min_length=1,
        description="SQL condition on the record's columns: key, value, headers, partition, offset, timestamp.",
        examples=["key IS NOT NULL"],
    )

    def when(self) -> When:
        """Return the condition as the pipeline takes it."""
        return When(sql=self.sql)


CONDITIONS: dict[str, type[Settings]] = {"field": FieldIs, "header": HeaderIs, "schema": SchemaIs, "sql": Sql}


def _chosen(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, tuple(CONDITIONS.values())):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("has to be a mapping, as in {field: type, equals: order}")
    kinds = [kind for kind in CONDITIONS if kind in value]
    if len(kinds) != 1:
        known = [*CONDITIONS, "equals", "in"]
        refuse(Settings, [((str(key),), near(key, known)) for key in value if key not in known])
        raise ValueError(f"has {' and '.join(kinds) or 'none'} of field:, header:, schema: and sql:. Write one")
    return CONDITIONS[kinds[0]].model_validate(value)


_CONDITION: Any = either(*CONDITIONS.values())
Where = Annotated[_CONDITION, WrapValidator(_chosen)]
"""One condition on a record."""


def is_field(name: str) -> bool:
    """Return whether a text names a field, with dots before those of objects."""
    return all(name.split(".")) and not set(_NOT_IN_FIELDS) & set(name)
