"""The formats of values and keys: each has a name, capabilities, and a module that makes its decoder."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from kafka_lake.errors import ConfigurationError
from kafka_lake.spec.topic_table import TopicTable

if TYPE_CHECKING:
    from kafka_lake.catalog.positions import TableState
    from kafka_lake.formats.columns import Target
    from kafka_lake.formats.decoder import Decoder
    from kafka_lake.formats.task.framing import SchemaId
    from kafka_lake.kafka.registry import SchemaSource, WriterSchema


PartName = Literal["value", "key"]


@dataclass(frozen=True)
class Format:
    """A format, and what the rest of kafka_lake may ask of it.

    Args:
        module: The module whose function ``decoder`` takes a `Part` and returns its `Decoder`. Imported when needed.
        is_json: Whether values are JSON text without a header, whose fields SQL can read.
        takes_columns: Whether a table may declare its columns.
        infers_columns: Whether columns are inferred from records where a table doesn't declare them.
        has_schema_ids: Whether values begin with the id of a schema in a registry, unless a file has the schema.
        has_one_column: Whether the whole value is one column.
    """

    name: str
    module: str
    is_json: bool = False
    takes_columns: bool = False
    infers_columns: bool = False
    has_schema_ids: bool = False
    has_one_column: bool = False

    def decoder(self, part: "Part") -> "Decoder":
        """Return the decoder of a part of a topic's records."""
        decoder: Decoder = import_module(self.module).decoder(part)
        return decoder


@dataclass(frozen=True)
class Part:
    """A part of a topic's records that a format decodes: their values or their keys.

    Args:
        state: The table with its current snapshot; None before it is created.
        registry: None if none is configured.
    """

    spec: TopicTable
    name: PartName
    declared: "Target | None" = None
    state: "TableState | None" = None
    registry: "SchemaSource | None" = None

    @property
    def format(self) -> Format:
        """The format."""
        return format_named(self.spec.format if self.name == "value" else self.spec.key_format or "bytes")

    @property
    def schema_file(self) -> str | None:
        """The file with the schema of the values; None if a registry has it, as it has those of keys."""
        return self.spec.schema_file if self.name == "value" else None

    @property
    def excluded(self) -> tuple[str, ...]:
        """Names of its fields that get no column."""
        return self.spec.except_columns if self.name == "value" else ()

    @property
    def registry_kind(self) -> str:
        """The kind of the registry: it decides which headers have schema ids; empty if none is configured."""
        return self.registry.kind if self.registry is not None else ""

    def fetch_schema(self) -> "Callable[[SchemaId], WriterSchema]":
        """Return the function that fetches a schema by its id."""
        if self.registry is None:
            raise ConfigurationError(
                f"Topic {self.spec.topic}: format {self.format.name} of its {self.name}s needs a schema registry, and "
                "none is configured.",
                "Set KAFKA_LAKE_SCHEMA_REGISTRY_URL, or give the schema in a file with format: schema:.",
            )
        # If the values' subject is in a context, the ids of keys are of that context too.
        return partial(self.registry.by_id, subject=self.spec.value_subject)


_FORMATS: dict[str, Format] = {}


def register(format_: Format) -> None:
    """Make a format known by its name."""
    _FORMATS[format_.name] = format_


def format_named(name: str) -> Format:
    """Return a registered format."""
    if name not in _FORMATS:
        raise ConfigurationError(f"Format {name} is unknown.", f"Use one of {', '.join(_FORMATS)}.")
    return _FORMATS[name]


def is_written_by_arrow(spec: TopicTable) -> bool:
    """Return whether tasks can write a table's rows together with those of other tables."""
    return format_named(spec.format).is_json and not spec.is_keyed


def formats_with_schema_ids() -> list[str]:
    """Return the names of the formats whose values begin with the id of a schema."""
    return [name for name, format_ in _FORMATS.items() if format_.has_schema_ids]


register(Format("json", "kafka_lake.formats.json.driver", is_json=True, takes_columns=True, infers_columns=True))
for _name in ("avro", "protobuf", "json_schema", "confluent"):
    register(Format(_name, "kafka_lake.formats.registered", has_schema_ids=True))
for _name in ("string", "bytes"):
    register(Format(_name, "kafka_lake.formats.plain", has_one_column=True))
