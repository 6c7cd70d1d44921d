"""Values that were written by a schema: its id in a registry before each value, or one schema in a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.errors import SchemaNotSupportedError, UnknownSchemaError
from kafka_lake.formats.columns import Target, columns_of
from kafka_lake.formats.decoder import Learned, Nothing, observed_in_tasks
from kafka_lake.formats.json.driver import OpenContent, work_of
from kafka_lake.formats.task.columns import Rules
from kafka_lake.formats.task.decoded import Observed
from kafka_lake.formats.task.registered import Key, key_of, name_of, no_schema
from kafka_lake.formats.writer_schema import Writer, writer_of
from kafka_lake.kafka.registry import SchemaType, WriterSchema

SCHEMA_IDS = "kafka-lake.schema-ids"
KEY_SCHEMA_IDS = "kafka-lake.key-schema-ids"
SCHEMA_TYPES: Mapping[str, SchemaType] = MappingProxyType(
    {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}
)

Part = Literal["value", "key"]


@dataclass(frozen=True)
class Registered(Nothing):
    """Decodes values that begin with a schema id, as the serializers of Confluent's and like registries write them.

    The wire format is a zero byte, the id as four bytes, for Protobuf the message's indexes, and the value.

    Args:
        format: ``avro``, ``protobuf``, ``json_schema``, or ``confluent`` for whatever the ids say.
        fetch: Gives the schema of an id; raises `UnknownSchemaError` if there is none, and other errors if the
            registry doesn't answer.
        writers: Those known, by id and message prefix (empty but for Protobuf).
        refused: Ids whose values can't be decoded, and why; with a message's prefix if it is that one alone.
        protobuf: Ids of Protobuf schemas, of which a writer is known only for the messages that values have named.
        part: Which part of the record these are.
        beside: What JSON values have shown beside the fields of their schemas.
    """

    format: str
    fetch: Callable[[int], WriterSchema]
    writers: Mapping[tuple[int, bytes], Writer] = field(default_factory=lambda: MappingProxyType({}))
    refused: Mapping[tuple[int, bytes], str] = field(default_factory=lambda: MappingProxyType({}))
    protobuf: frozenset[int] = frozenset()
    part: Part = "value"
    rules: Rules = field(default_factory=Rules)
    beside: OpenContent = field(default_factory=OpenContent)

    @property
    def fixed(self) -> Target | None:
        """None: the schemas tell the columns."""
        return None

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the schemas known, the oldest first, and what values have beside them."""
        known = [(writer.label, writer.fields) for _, writer in sorted(self.writers.items(), key=lambda each: each[0])]
        return [*known, *(("the records", fields) for fields in self.beside.shown)]

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told."""
        columns = columns_of(target.columns, target)
        decoders: list[Mapping[str, Any]] = []
        schemas: dict[Key, int] = {}
        for key, writer in self.writers.items():
            if writer.schema.kind != "JSON":
                schemas[key] = len(decoders)
                decoders.append(writer.work(columns))
        if self._json_keys():
            schemas |= dict.fromkeys(self._json_keys(), len(decoders))
            rules = replace(self.rules, infer=True, any_case=target.any_case)
            decoders.append(work_of(target, rules, None))
        return self._work(columns, decoders, schemas, refused=self.refused, max_record_bytes=max_record_bytes)

    def change(self, target: Target) -> T.StructType | None:
        """Return None."""
        return None

    def learn(self, seen: Observed, records: DataFrame, target: Target) -> Learned | None:
        """Return a decoder that knows the schemas of the ids that were strange in a pass, and what is beside them."""
        wiser = self._knowing(seen, records)
        if set(wiser.writers) != set(self.writers) or wiser._explains_more(self):
            return Learned(wiser, again=True)
        if self._watches() and replace(seen, schemas={}, key=None):
            schemas = [writer.schema for writer in wiser.writers.values() if writer.schema.kind == "JSON"]
            wiser = replace(wiser, beside=wiser.beside.knowing(seen, schemas, target))
        elif wiser.beside.kept_out:
            wiser = replace(wiser, beside=wiser.beside.forgetting())
        return None if wiser is self else Learned(wiser, again=False)

    def look(self, records: DataFrame) -> "Registered":
        """Return a decoder that knows the schemas of all ids in the records, in a pass of its own."""
        return self._knowing(self.looked(records), records)

    def looked(self, records: DataFrame) -> Observed:
        """Return which schemas wrote records, none of which is decoded."""
        known = dict.fromkeys([*self.writers, *self.refused], "")
        mine = records.withColumn("value", F.col(self.part))
        return observed_in_tasks(
            mine, self._work((), (), {}, refused=known, max_record_bytes=None), self.rules.max_columns
        )

    def _knowing(self, seen: Observed, records: DataFrame) -> "Registered":
        """Return a decoder that knows the schemas of ids, and the messages of Protobuf's, that a pass has shown."""
        strange = self._strange(seen)
        if not strange:
            return self
        wiser = self.known(sorted({id_ for id_, prefix in strange if not prefix}), [key for key in strange if key[1]])
        if wiser.protobuf != self.protobuf:
            # Only now is it known that a message's indexes follow those ids.
            strange = wiser._strange(wiser.looked(records))
            wiser = wiser.known([], [key for key in strange if key[1]])
        return wiser

    def _explains_more(self, before: "Registered") -> bool:
        """Return whether the registry has ids that can't be used: tasks reported them as missing.

        Message indexes don't count: corrupt values have any number of them.
        """
        new = self.refused.keys() - before.refused.keys()
        return any(self.refused[key] != no_schema(key[0]) for key in new if not key[1])

    def _strange(self, seen: Observed) -> list[Key]:
        keys = map(key_of, seen.schemas)
        known = {*self.writers, *self.refused, *((id_, b"") for id_ in self.protobuf)}
        return sorted(key for key in keys if key not in known and (key[0], b"") not in self.refused)

    def _work(
        self,
        columns: tuple[Any, ...],
        decoders: Sequence[Mapping[str, Any]],
        schemas: Mapping[Key, int],
        refused: Mapping[Key, str],
        max_record_bytes: int | None,
    ) -> Mapping[str, Any]:
        return {
            "decoder": "registered",
            "columns": columns,
            "decoders": list(decoders),
            "schemas": dict(schemas),
            "refused": dict(refused),
            "protobuf": sorted(self.protobuf),
            "max_bytes": max_record_bytes,
        }

    def known(self, ids: Sequence[int], messages: Sequence[tuple[int, bytes]] = ()) -> "Registered":
        """Return a decoder that knows these schemas too."""
        writers, refused, protobuf = dict(self.writers), dict(self.refused), set(self.protobuf)
        expected = SCHEMA_TYPES.get(self.format)
        for key in [*((id_, b"") for id_ in ids), *messages]:
            id_, prefix = key
            try:
                schema = self.fetch(id_)
                if expected and schema.kind != expected:
                    refused[key] = f"{schema.label} is {schema.kind}, the topic's format is {self.format}"
                    continue
                if schema.kind == "PROTOBUF":
                    protobuf.add(id_)
                # Of a schema with several messages, those count that values name.
                if schema.kind != "PROTOBUF" or prefix:
                    writers[key] = writer_of(schema, prefix)
            except UnknownSchemaError:
                refused[key] = no_schema(id_)
            except SchemaNotSupportedError as error:
                refused[key] = str(error)
        return replace(self, writers=writers, refused=refused, protobuf=frozenset(protobuf))

    def marks(self) -> Mapping[str, str]:
        """Return the ids, for the snapshot's summary."""
        return {MARKS[self.part]: ",".join(map(name_of, self._keys()))} if self.writers else {}

    def remembering(self, mark: str) -> "Registered":
        """Return a decoder that knows what `marks` told."""
        keys = [key_of(name) for name in mark.split(",") if name]
        return self.known([id_ for id_, prefix in keys if not prefix], [key for key in keys if key[1]])

    def seen(self, seen: Observed) -> Mapping[str, int]:
        """Return how many values each schema has written; those that wrote none are left out."""
        counted = {key_of(name): count for name, count in seen.schemas.items()}
        return {self.writers[key].label: counted[key] for key in self._keys() if key in counted}

    def unkept(self) -> Mapping[str, str]:
        """Return what was in JSON values and is in no column: path → what is said of it."""
        return dict(self.beside.kept_out)

    def _json_keys(self) -> list[Key]:
        return sorted(key for key, writer in self.writers.items() if writer.schema.kind == "JSON")

    def _watches(self) -> bool:
        """Return whether decoded values tell what they have beside the fields of their schemas; keys don't."""
        return self.part == "value" and bool(self._json_keys())

    def _keys(self) -> list[Key]:
        return sorted(self.writers)


MARKS: Mapping[Part, str] = MappingProxyType({"value": SCHEMA_IDS, "key": KEY_SCHEMA_IDS})


@dataclass(frozen=True)
class FromFile(Nothing):
    """Decodes values that are all of one schema, which stands in a file.

    Args:
        watches: Whether to see what JSON records have beside the schema's fields.
    """

    writer: Writer
    rules: Rules = field(default_factory=Rules)
    watches: bool = True
    beside: OpenContent = field(default_factory=OpenContent)

    @property
    def fixed(self) -> Target | None:
        """None: the file may change, and the table evolves."""
        return None

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the schema, and what records have beside it."""
        return [(self.writer.label, self.writer.fields), *(("the records", fields) for fields in self.beside.shown)]

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told."""
        if self.writer.schema.kind == "JSON":
            rules = replace(self.rules, infer=True, any_case=target.any_case)
            return work_of(target, rules, max_record_bytes)
        return self.writer.work(columns_of(target.columns, target), max_record_bytes)

    def learn(self, seen: Observed, records: DataFrame, target: Target) -> Learned | None:
        """Return a decoder that knows what JSON records have beside the schema's fields."""
        if not (self.watches and seen):
            return (
                Learned(replace(self, beside=self.beside.forgetting()), again=False) if self.beside.kept_out else None
            )
        known = self.beside.knowing(seen, [self.writer.schema], target)
        return Learned(replace(self, beside=known), again=False)

    def unkept(self) -> Mapping[str, str]:
        """Return what was in the records and is in no column: path → what is said of it."""
        return dict(self.beside.kept_out)
