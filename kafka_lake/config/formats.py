"""The groups ``format:`` and ``key:`` of a topic: what the values and the keys of its records are."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from kafka_lake.errors import ConfigurationError
from kafka_lake.spec.ddl import check_ddl
from kafka_lake.spec.settings import OptionalText, Problem, Settings, Text, either, one_of
from kafka_lake.spec.topic_table import TimestampUnit

REGISTRY = "registry"
"""As ``schema``: that of the registry, by the id in each record."""


_ENVELOPE = "Format of change events from a database. See [change data capture](cdc.md)."


class Json(Settings):
    """JSON. Columns are inferred from the records, unless a table declares its `columns`."""

    type: Literal["json"]
    infer_timestamps: bool = Field(
        default=False,
        description="JSON without `columns`: infer date and timestamp columns, if all values of the field in the "
        "first commit are ISO 8601 text.",
    )
    timestamp_unit: TimestampUnit | None = Field(
        default=None,
        description="JSON: unit of numbers in date and timestamp columns, counted from 1970. Without it, numbers "
        "don't fit such columns.",
    )
    envelope: Literal["debezium", "maxwell", "canal"] | None = Field(
        default=None, description=_ENVELOPE, examples=["debezium"]
    )


class BySchema(Settings):
    """A format whose schema the registry has, or a file. Abstract."""

    schema_: Text = Field(
        default=REGISTRY,
        alias="schema",
        description="`registry`: the schema with the id in each record. Otherwise a schema file beside the YAML "
        "document. `#Message` selects a Protobuf message; the default is the first.",
        examples=["order.avsc", "shop.proto#shop.Order"],
    )
    subject: OptionalText = Field(default=None, description="Registry subject of the values. Default: `<topic>-value`.")

    def problems(self) -> Iterator[Problem]:
        """Give what asks for a registry, though a file has the schema."""
        if self.schema_ != REGISTRY and self.subject is not None:
            yield ("subject",), f"is for schema: {REGISTRY}. Remove it, or the file"

    @property
    def file(self) -> str | None:
        """Return the file that has the schema; None if the registry has it."""
        return None if self.schema_ == REGISTRY else self.schema_


class Avro(BySchema):
    """Avro."""

    type: Literal["avro"]
    envelope: Literal["debezium"] | None = Field(default=None, description=_ENVELOPE, examples=["debezium"])

    def problems(self) -> Iterator[Problem]:
        """Give what asks for a registry, though a file has the schema."""
        yield from super().problems()
        if self.envelope is not None and self.file is not None:
            yield ("envelope",), f"needs schema: {REGISTRY}. Remove the file"


class Protobuf(BySchema):
    """Protobuf."""

    type: Literal["protobuf"]

    @property
    def file(self) -> str | None:
        """Return the file that has the schema; None if the registry has it."""
        return None if self.schema_ == REGISTRY else self.schema_.partition("#")[0]

    @property
    def message(self) -> str | None:
        """Return the message of the file that values are; None for its first one."""
        return self.schema_.partition("#")[2] or None


class JsonSchema(BySchema):
    """JSON with a JSON Schema."""

    type: Literal["json_schema"]


class Confluent(Settings):
    """Avro, Protobuf or JSON Schema, by the schema id of each record."""

    type: Literal["confluent"]
    subject: OptionalText = Field(default=None, description="Registry subject of the values. Default: `<topic>-value`.")


class Whole(Settings):
    """The whole value as one column."""

    type: Literal["string", "bytes"]


FORMATS: dict[str, type[Settings]] = {
    "json": Json,
    "avro": Avro,
    "protobuf": Protobuf,
    "json_schema": JsonSchema,
    "confluent": Confluent,
    "string": Whole,
    "bytes": Whole,
}
_FORMAT: Any = either(*dict.fromkeys(FORMATS.values()), Literal[tuple(FORMATS)])
ValueFormat = Annotated[_FORMAT, one_of("type", FORMATS)]
"""A format by its name, or a group with its name as ``type``."""

_COLUMN: Any = Field(
    default="_key",
    pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
    description="Column for decoded keys.",
    examples=["order_id"],
)


class KeyOfJson(Settings):
    """Keys in JSON."""

    format: Literal["json"]
    column: Text = _COLUMN
    schema_: Text = Field(
        alias="schema",
        description="JSON keys, required: Spark DDL of the key's fields. Other formats: a schema file; by default, "
        "the registry's schema.",
        examples=["id bigint"],
    )

    def problems(self) -> Iterator[Problem]:
        """Give what is wrong with the fields."""
        try:
            check_ddl(self.schema_, "schema")
        except ConfigurationError as error:
            yield (), str(error)


class WholeKey(Settings):
    """The whole key as one value, or decoded by its schema id."""

    format: Literal["string", "bytes", "confluent", "avro", "protobuf", "json_schema"]
    column: Text = _COLUMN


KEYS: dict[str, type[Settings]] = {
    **dict.fromkeys(("string", "bytes"), WholeKey),
    "json": KeyOfJson,
    **dict.fromkeys(("avro", "protobuf", "json_schema", "confluent"), WholeKey),
}
_KEY: Any = either(*dict.fromkeys(KEYS.values()), Literal[tuple(KEYS)])
KeyFormat = Annotated[_KEY, one_of("format", KEYS)]
"""A format of keys by its name, or a group with its name as ``format``."""


def format_spec(given: Any) -> dict[str, Any]:
    """Return a ``format:`` as fields of `TopicTable`."""
    found: dict[str, Any] = {"format": given.type}
    for name in (
        "infer_timestamps",
        "timestamp_unit",
        "envelope",
        "subject",
        "message",
    ):
        found[name] = getattr(given, name, None)
    found["schema_file"] = getattr(given, "file", None)
    return {name: value for name, value in found.items() if value is not None}


def key_spec(given: Any) -> dict[str, Any]:
    """Return a ``key:`` as fields of `TopicTable`; None for keys that stay bytes in the metadata column."""
    if given is None:
        return {}
    found: dict[str, Any] = {"key_format": given.format, "key_column": given.column}
    if isinstance(given, KeyOfJson):
        found["key_schema"] = given.schema_
    return found
