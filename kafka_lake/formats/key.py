"""The record's key as a column beside those of its value, by a decoder of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kafka_lake.engine.task_frames import packed
from kafka_lake.formats.columns import Target
from kafka_lake.formats.decoder import COLUMN, Decoder, Learned
from kafka_lake.formats.task.decoded import NOTHING, Observed
from kafka_lake.formats.task.key import KeyDecoder

_VALUE, _KEY = "__kafka_lake_value", "__kafka_lake_key"


@dataclass(frozen=True)
class Keyed(Decoder):
    """Decodes value and key; the key is one column: a struct, or the value of a key that isn't a record.

    Args:
        of_tombstones: Whether the key of a record without a value is decoded too: it identifies the deleted row.
    """

    value: Decoder
    key: Decoder
    column: str
    of_tombstones: bool = False

    @property
    def fixed(self) -> Target | None:
        """The columns of both, if both are settled."""
        value, key = self.value.fixed, self.key.fixed
        if value is None or key is None:
            return None
        return replace(value, columns=T.StructType([*value.columns, self._field(key.columns)]))

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what values look like, then keys, each as the one field of the key's column."""
        return [*_known(self.value), *self.incoming_keys()]

    def incoming_values(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what values look like."""
        return _known(self.value)

    def incoming_keys(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what keys look like, as the one field of the key's column."""
        return [(f"{label} of the key", T.StructType([self._field(kind)])) for label, kind in _known(self.key)]

    def for_tasks(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return the data of the tasks' decoder."""
        names = target.columns.fieldNames()
        value = self.value.for_tasks(target.without(self.column), max_record_bytes)
        key: Mapping[str, Any] | None = None
        whole = False
        if self.column in names:
            kind = target.columns[self.column].dataType
            whole = isinstance(kind, T.StructType)
            keys = target.part(self.column) if whole else Target(T.StructType([T.StructField(COLUMN, kind)]))
            key = self.key.for_tasks(keys, None)
        return {
            "decoder": packed(KeyDecoder),
            "values": value,
            "keys": key,
            "names": names,
            "column": self.column,
            "whole": whole,
            "of_tombstones": self.of_tombstones,
        }

    def learn(self, seen: Observed, records: DataFrame, target: Target) -> Learned | None:
        """Return what a pass taught about values, keys, or both."""
        value = self.value.learn(seen, records, target.without(self.column))
        key = self.key.learn(seen.key or NOTHING, records, target)
        if value is None and key is None:
            return None
        both = replace(self, value=value.decoder if value else self.value, key=key.decoder if key else self.key)
        return Learned(both, bool((value and value.again) or (key and key.again)))

    def inspect(self, records: DataFrame) -> "Keyed":
        """Return a decoder both of whose parts have looked at records."""
        return replace(self, value=self.value.inspect(records), key=self.key.inspect(records))

    def snapshot_properties(self) -> Mapping[str, str]:
        """Return the properties of both."""
        return {**self.value.snapshot_properties(), **self.key.snapshot_properties()}

    def schema_counts(self, seen: Observed) -> Mapping[str, int]:
        """Return the schemas of both."""
        return {
            **self.value.schema_counts(seen),
            **{f"{label} of the key": count for label, count in self.key.schema_counts(seen.key or NOTHING).items()},
        }

    def not_stored(self) -> Mapping[str, str]:
        """Return what of values and keys no column has."""
        return {
            **self.value.not_stored(),
            **{f"{self.column}.{path}": said for path, said in self.key.not_stored().items()},
        }

    def _field(self, columns: T.StructType) -> T.StructField:
        alone = columns.fieldNames() == [COLUMN]
        return T.StructField(self.column, columns[COLUMN].dataType if alone else columns)


def _known(decoder: Decoder) -> Sequence[tuple[str, T.StructType]]:
    return [("the settings", decoder.fixed.columns)] if decoder.fixed else decoder.incoming()
