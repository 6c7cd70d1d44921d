"""Rows that were cut out of envelopes, and keys, each with the id of the registry's schema that it was written with."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kafka_lake.errors import SchemaNotSupportedError, UnknownSchemaError
from kafka_lake.executors.changes.debezium_avro import AvroEnvelopes
from kafka_lake.executors.decoded import Observed
from kafka_lake.executors.registered import key_of
from kafka_lake.ingest.decode.avro.debezium import of_keys, of_rows
from kafka_lake.ingest.decode.columns import Target
from kafka_lake.ingest.decode.decoder import Learned
from kafka_lake.ingest.decode.registered import MARKS, Part, Registered
from kafka_lake.ingest.decode.writer import inlined
from kafka_lake.kafka.registry import WriterSchema

_PARTS: tuple[Part, ...] = ("value", "key")

Fetch = Callable[[int], WriterSchema]


@dataclass(frozen=True)
class Envelopes:
    """Decodes what `AvroEnvelopes` cuts out of Debezium's records in Avro: rows, and the keys of rows that go.

    Args:
        fetch: Gives the schema of an id, as `Registered` takes it.
        rows: Decodes both by the ids known.
        values: Ids of values' schemas that have been looked up.
        keys: Ids of keys' schemas that have been looked up.
    """

    fetch: Fetch
    rows: Registered
    values: frozenset[int] = frozenset()
    keys: frozenset[int] = frozenset()
    schemas: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """The whole schemas, as tasks take them, each named type written out where it is first used."""

    @classmethod
    def of(cls, fetch: Fetch) -> "Envelopes":
        """Return a decoder that knows no schema yet."""
        return cls(fetch, Registered("avro", fetch))

    @property
    def fixed(self) -> Target | None:
        """None: the schemas tell the columns."""
        return None

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the schemas of rows and of keys, the oldest first."""
        return self.rows.incoming()

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told of rows and keys that were cut out."""
        return self.rows.work(target, max_record_bytes)

    def change(self, target: Target) -> T.StructType | None:
        """Return None: what rows are cut out of is a change, they themselves are none."""
        return None

    def learn(self, seen: Observed, records: DataFrame, target: Target) -> Learned | None:
        """Return a decoder that knows the schemas of the ids that were strange in a pass."""
        values, keys = _ids(seen), _ids(seen.key) if seen.key else set()
        if values <= self.values and keys <= self.keys:
            return None
        wiser = self.known(values, keys)
        return Learned(wiser, again=wiser.schemas.keys() != self.schemas.keys())

    def look(self, records: DataFrame) -> "Envelopes":
        """Return a decoder that knows the schemas of all ids in records, keys' ids too, in passes of their own.

        Raises:
            RegistryError: If the registry doesn't answer.
        """
        return self.known(*(_ids(replace(self.rows, part=part).looked(records)) for part in _PARTS))

    def known(self, values: Iterable[int], keys: Iterable[int]) -> "Envelopes":
        """Return a decoder that knows these schemas too.

        Raises:
            RegistryError: If the registry doesn't answer.
        """
        new = sorted(set(values) - self.values), sorted(set(keys) - self.keys)
        rows = replace(self.rows, fetch=partial(_fetched, self.fetch, of_rows)).known(new[0])
        rows = replace(rows, fetch=partial(_fetched, self.fetch, of_keys)).known(new[1])
        schemas = dict(self.schemas)
        for id_ in {*new[0], *new[1]} - schemas.keys():
            try:
                schemas[id_] = inlined(_avro(self.fetch(id_)))
            except (SchemaNotSupportedError, UnknownSchemaError):
                # `rows` says so of its values.
                continue
        return replace(self, rows=rows, schemas=schemas, values=self.values.union(new[0]), keys=self.keys.union(new[1]))

    def of_values(self) -> Registered:
        """Return what decodes rows, without the schemas of keys."""
        return replace(self.rows, writers={key: w for key, w in self.rows.writers.items() if key[0] in self.values})

    def key_columns(self, key: bytes) -> tuple[str, ...]:
        """Return the columns that a record's key tells; none if it is of no schema that is known."""
        return AvroEnvelopes(self.schemas).key_columns(key) or ()

    def lacks(self, names: Iterable[str]) -> bool:
        """Return whether rows of a schema that is known lack some fields, which may be in the records' keys."""
        known = [self.rows.writers[key].fields.fieldNames() for key in self.rows.writers if key[0] in self.values]
        return any(not set(names) <= set(fields) for fields in known)

    def marks(self) -> Mapping[str, str]:
        """Return the ids, for the snapshot's summary."""
        known = {"value": self.values, "key": self.keys}
        marks = {MARKS[part]: ",".join(map(str, sorted(known[part] & self.schemas.keys()))) for part in _PARTS}
        return {name: ids for name, ids in marks.items() if ids}

    def remembering(self, values: str, keys: str) -> "Envelopes":
        """Return a decoder that knows what `marks` told.

        Raises:
            RegistryError: If the registry doesn't answer.
        """
        return self.known(*(map(int, filter(None, mark.split(","))) for mark in (values, keys)))

    def seen(self, seen: Observed) -> Mapping[str, int]:
        """Return how many values each schema has written; those that wrote none are left out."""
        return {f"schema id {id_}": seen.schemas[str(id_)] for id_ in sorted(self.values) if str(id_) in seen.schemas}

    def unkept(self) -> Mapping[str, str]:
        """Return nothing."""
        return {}


def _ids(seen: Observed) -> set[int]:
    return {key_of(name)[0] for name in seen.schemas}


def _fetched(fetch: Fetch, part: Callable[[WriterSchema], WriterSchema], id_: int) -> WriterSchema:
    return part(_avro(fetch(id_)))


def _avro(schema: WriterSchema) -> WriterSchema:
    if schema.kind != "AVRO":
        raise SchemaNotSupportedError(f"{schema.label} is {schema.kind}, the topic's format is avro.")
    return schema
