"""The record's key as a column beside those of its value, by a decoder of its own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.executors.json.decoder import NOTHING
from kafka_lake.executors.task import OBSERVED
from kafka_lake.ingest.decode import BAD_KEY
from kafka_lake.ingest.decode.decoder import Decoder, Learned
from kafka_lake.ingest.decode.in_tasks import decoded_in_tasks
from kafka_lake.ingest.decode.target import Target
from kafka_lake.ingest.decode.text import COLUMN

_VALUE, _KEY = "__kafka_lake_value", "__kafka_lake_key"


@dataclass(frozen=True)
class Keyed:
    """Decodes value and key; the key is one column: a struct, or the value of a key that is no record.

    Args:
        value: Decodes values.
        key: Decodes keys.
        column: The key's column.
        of_tombstones: Whether the key of a record without a value is decoded too: it tells which row goes.
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

    def decode(
        self, records: DataFrame, target: Target, *, max_record_bytes: int | None = None, messages: bool = True
    ) -> DataFrame:
        """Add the three columns of every decoder's result to records."""
        work = self.work(target, max_record_bytes)
        if work is not None:
            return decoded_in_tasks(records, target.columns, work)
        known = self.column in target.columns.fieldNames()
        values = target.without(self.column)
        frame = self.value.decode(records, values, max_record_bytes=max_record_bytes, messages=messages)
        outcome = ("decoded", "error_class", "error_message")
        frame = frame.select(*records.columns, F.struct(*outcome).alias(_VALUE))
        keys: Target | None = None
        if known:
            kind = target.columns[self.column].dataType
            plain = not isinstance(kind, T.StructType)
            keys = Target(T.StructType([T.StructField(COLUMN, kind)])) if plain else target.part(self.column)
            swapped = frame.withColumn(_KEY, F.col("value")).withColumn("value", F.col("key"))
            frame = self.key.decode(swapped, keys, messages=messages).withColumn("value", F.col(_KEY))
            key = F.col("decoded").getField(COLUMN) if plain else F.col("decoded")
        else:
            frame = frame.select("*", *[F.lit(None).cast("string").alias(name) for name in outcome[1:]])
        value = F.col(_VALUE)
        fields = {f.name: value.getField("decoded").getField(f.name) for f in values.columns}
        if known:
            fields[self.column] = key
        row = F.struct(*[fields[f.name].alias(f.name) for f in target.columns])
        bad_value = value.getField("error_class")
        # A tombstone stays one, whatever its key is, unless its key says which row goes.
        asked = F.col("value").isNotNull() | F.lit(self.of_tombstones)
        bad_key = F.when(asked & F.col("error_class").isNotNull(), F.lit(BAD_KEY))
        alone = F.col("value").isNull() & F.lit(self.of_tombstones) & F.col("error_class").isNull()
        said = F.concat(F.lit("The key: "), F.coalesce("error_message", "error_class"))
        observed = [_as_of_key(F.col(OBSERVED)).alias(OBSERVED)] if OBSERVED in frame.columns else []
        return frame.select(
            *records.columns,
            *observed,
            F.when(value.getField("decoded").isNotNull() | alone, row).alias("decoded"),
            F.coalesce(bad_value, bad_key).alias("error_class"),
            F.coalesce(value.getField("error_message"), F.when(bad_key.isNotNull() & bad_value.isNull(), said)).alias(
                "error_message"
            ),
        )

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any] | None:
        """Return what tasks are told; None unless both parts are decoded in tasks."""
        names = target.columns.fieldNames()
        value = self.value.work(target.without(self.column), max_record_bytes)
        key, whole = None, False
        if self.column in names:
            kind = target.columns[self.column].dataType
            whole = isinstance(kind, T.StructType)
            keys = target.part(self.column) if whole else Target(T.StructType([T.StructField(COLUMN, kind)]))
            key = self.key.work(keys, None)
            if key is None:
                return None
        if value is None:
            return None
        rest = {"names": names, "column": self.column, "whole": whole, "of_tombstones": self.of_tombstones}
        return {"decoder": "with_key", "value": value, "key": key, "told": rest}

    def metrics(self, max_record_bytes: int | None = None) -> Sequence[Column]:
        """Return the metrics of both."""
        return [*self.value.metrics(max_record_bytes), *self.key.metrics()]

    def learn(self, counts: Mapping[str, Any], records: DataFrame, target: Target) -> Learned | None:
        """Return what a pass taught about values, keys, or both."""
        value = self.value.learn(counts, records, target.without(self.column))
        key = self.key.learn(_of_key(counts), records, target)
        if value is None and key is None:
            return None
        both = replace(self, value=value.decoder if value else self.value, key=key.decoder if key else self.key)
        return Learned(both, bool((value and value.again) or (key and key.again)))

    def look(self, records: DataFrame) -> "Keyed":
        """Return a decoder both of whose parts have looked at records."""
        return replace(self, value=self.value.look(records), key=self.key.look(records))

    def marks(self) -> Mapping[str, str]:
        """Return the marks of both."""
        return {**self.value.marks(), **self.key.marks()}

    def seen(self, counts: Mapping[str, Any]) -> Mapping[str, int]:
        """Return the schemas of both."""
        return {
            **self.value.seen(counts),
            **{f"{label} of the key": count for label, count in self.key.seen(_of_key(counts)).items()},
        }

    def unkept(self) -> Mapping[str, str]:
        """Return what is said of values, then of keys."""
        return {**self.value.unkept(), **{f"{self.column}.{path}": said for path, said in self.key.unkept().items()}}

    def _field(self, columns: T.StructType) -> T.StructField:
        alone = columns.fieldNames() == [COLUMN]
        return T.StructField(self.column, columns[COLUMN].dataType if alone else columns)


def _of_key(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a pass has shown of keys."""
    texts = map(json.loads, counts.get(OBSERVED) or ())
    return {**counts, OBSERVED: tuple(json.dumps({"at": t["at"], **t["key"]}) for t in texts if t["key"])}


def _as_of_key(observed: Column) -> Column:
    """Return what tasks have observed of keys alone, as what they observe of records."""
    start = json.dumps({"at": [0, 0], **NOTHING.data()}).removesuffix("{}}")
    return F.when(observed.isNotNull(), F.concat(F.lit(start), observed, F.lit("}")))


def _known(decoder: Decoder) -> Sequence[tuple[str, T.StructType]]:
    return [("the settings", decoder.fixed.columns)] if decoder.fixed else decoder.incoming()
