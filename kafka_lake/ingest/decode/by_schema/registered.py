"""Values that begin with the id of their schema, which a registry has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import SchemaNotSupportedError, UnknownSchemaError
from kafka_lake.executors.json.columns import Rules
from kafka_lake.executors.task import OBSERVED
from kafka_lake.ingest.decode import NO_SCHEMA_ID, UNKNOWN_SCHEMA
from kafka_lake.ingest.decode.by_schema.shares import Share, decoded_shares
from kafka_lake.ingest.decode.by_schema.writer import Writer, writer_of
from kafka_lake.ingest.decode.decoder import Learned, Verdict
from kafka_lake.ingest.decode.json.decoder import decode_observed, observed_in
from kafka_lake.ingest.decode.json.open_content import OpenContent
from kafka_lake.ingest.decode.protobuf.indexes import index_prefix
from kafka_lake.ingest.decode.target import Target
from kafka_lake.kafka.schemas import SchemaType, WriterSchema
from kafka_lake.spark.frames import any_of

SCHEMA_IDS = "kafka-lake.schema-ids"
KEY_SCHEMA_IDS = "kafka-lake.key-schema-ids"

_ID, _WHOLE, _JSON = "__kafka_lake_id", "__kafka_lake_whole", "__kafka_lake_json"
_HEADER = 5
_REST = 2**31 - 1
GLUE_STARTS, GLUE_HEADER = (b"\x03\x00", b"\x03\x05"), 18
GLUE_FORMAT = "Written in AWS Glue Schema Registry's format"
GLUE_NOT_READ = (
    "That format is not read. Have the producer write Confluent's wire format, or keep the values with format: bytes."
)
_LOOKED_UP = 200
SCHEMA_TYPES: Mapping[str, SchemaType] = MappingProxyType(
    {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}
)

Part = Literal["value", "key"]


@dataclass(frozen=True)
class Registered:
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
        rules: The topic's, for JSON.
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

    def decode(
        self, records: DataFrame, target: Target, *, max_record_bytes: int | None = None, messages: bool = True
    ) -> DataFrame:
        """Add the three columns of every decoder's result to records."""
        value = F.col("value")
        frame = records.withColumn(_ID, schema_id(value)).withColumn(_WHOLE, value)
        json_ids = self._json_ids()
        began = F.concat(F.lit("The value begins with 0x"), F.hex(F.substring(value, 1, _HEADER)), F.lit("."))
        why = F.when(is_glue(value), written_by_glue(value)).otherwise(began)
        verdicts = [Verdict(F.col(_ID).isNull(), F.lit(NO_SCHEMA_ID), why)]
        if json_ids:
            mine = F.col(_ID).isin(json_ids)
            parsed = decode_observed(self._of_json(frame, max_record_bytes), target, self._rules(target))
            frame = parsed.withColumn(_JSON, F.struct("decoded", "error_class", "error_message"))
            frame = frame.drop("decoded", "error_class", "error_message").withColumn("value", F.col(_WHOLE))
            failed = mine & F.col(_JSON).getField("error_class").isNotNull()
            outcome = F.col(_JSON)
            verdicts.append(Verdict(failed, outcome.getField("error_class"), outcome.getField("error_message")))
        others = [self._share(key, writer) for key, writer in self.writers.items() if writer.schema.kind != "JSON"]
        known = [share.mine for share in others] + [F.col(_ID).isin(json_ids)] * bool(json_ids)
        verdicts.append(Verdict(~any_of(known), F.lit(UNKNOWN_SCHEMA), self._why()))
        parsed_row = F.col(_JSON).getField("decoded") if json_ids else None
        return decoded_shares(
            records,
            frame,
            others,
            verdicts,
            target=target,
            max_record_bytes=max_record_bytes,
            messages=messages,
            others=parsed_row,
        )

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any] | None:
        """Return None: Spark's expressions decode."""
        return None

    def metrics(self, max_record_bytes: int | None = None) -> Sequence[Column]:
        """Return how many values each schema has written, and how many are of none that is known."""
        value = F.col(self.part)
        mine = {key: self._is(key, value) for key in self.writers}
        refused = [self._is(key, value) for key in self.refused]
        strange = schema_id(value).isNotNull() & ~any_of([*mine.values(), *refused])
        return [
            *([F.count(OBSERVED).alias(OBSERVED)] if self._watches() else []),
            F.count_if(strange).alias(f"{self.part}_strangers"),
            *(F.count_if(is_mine).alias(self._metric(key)) for key, is_mine in mine.items()),
        ]

    def learn(self, counts: Mapping[str, Any], records: DataFrame, target: Target) -> Learned | None:
        """Return a decoder that knows the schemas of the ids that were strange in a pass, and what is beside them."""
        wiser = self.look(records) if counts[f"{self.part}_strangers"] else self
        if set(wiser.writers) != set(self.writers):
            return Learned(wiser, again=True)
        if self._watches() and counts.get(OBSERVED):
            seen = observed_in(wiser._of_json(records), target, wiser._rules(target))
            schemas = [writer.schema for writer in wiser.writers.values() if writer.schema.kind == "JSON"]
            wiser = replace(wiser, beside=wiser.beside.knowing(seen, schemas, target))
        elif wiser.beside.kept_out:
            wiser = replace(wiser, beside=wiser.beside.forgetting())
        return None if wiser is self else Learned(wiser, again=False)

    def look(self, records: DataFrame) -> "Registered":
        """Return a decoder that knows the schemas of all ids in the records, in a pass of its own.

        Raises:
            RegistryError: If the registry doesn't answer.
        """
        value = F.col(self.part)
        ids = schema_id(value).alias("id")
        counted = records.select(ids).filter(F.col("id").isNotNull()).groupBy("id").count()
        found = [row["id"] for row in counted.orderBy(F.desc("count"), "id").limit(_LOOKED_UP).collect()]
        wiser = self.known(sorted(set(found) - {id_ for id_, _ in self.writers}))
        protobuf = sorted(wiser.protobuf & set(found))
        if not protobuf:
            return wiser
        prefixes = records.filter(schema_id(value).isin(protobuf)).select(ids, index_prefix(value).alias("prefix"))
        distinct = prefixes.filter(F.col("prefix").isNotNull()).distinct().limit(_LOOKED_UP)
        named = [(row["id"], bytes(row["prefix"])) for row in distinct.collect()]
        return wiser.known([], [each for each in named if each not in wiser.writers])

    def known(self, ids: Sequence[int], messages: Sequence[tuple[int, bytes]] = ()) -> "Registered":
        """Return a decoder that knows these schemas too.

        Args:
            ids: Schema ids.
            messages: Ids of Protobuf schemas, each with the prefix that names a message in it.

        Raises:
            RegistryError: If the registry doesn't answer.
        """
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
                refused[key] = f"the registry has no schema id {id_}"
            except SchemaNotSupportedError as error:
                refused[key] = str(error)
        return replace(self, writers=writers, refused=refused, protobuf=frozenset(protobuf))

    def marks(self) -> Mapping[str, str]:
        """Return the ids, for the snapshot's summary."""
        if not self.writers:
            return {}
        return {
            MARKS[self.part]: ",".join(f"{id_}:{prefix.hex()}" if prefix else f"{id_}" for id_, prefix in self._keys())
        }

    def remembering(self, mark: str) -> "Registered":
        """Return a decoder that knows what `marks` told.

        Raises:
            RegistryError: If the registry doesn't answer.
        """
        parts = [each.partition(":") for each in mark.split(",") if each]
        plain = [int(id_) for id_, colon, _ in parts if not colon]
        return self.known(plain, [(int(id_), bytes.fromhex(prefix)) for id_, colon, prefix in parts if colon])

    def seen(self, counts: Mapping[str, Any]) -> Mapping[str, int]:
        """Return how many values each schema has written; those that wrote none are left out."""
        found = {self.writers[key].label: counts[self._metric(key)] for key in self._keys()}
        return {label: count for label, count in found.items() if count}

    def unkept(self) -> Mapping[str, str]:
        """Return what was in JSON values and is in no column: path → what is said of it."""
        return dict(self.beside.kept_out)

    def _json_ids(self) -> list[int]:
        return sorted({id_ for (id_, _), writer in self.writers.items() if writer.schema.kind == "JSON"})

    def _watches(self) -> bool:
        """Return whether decoded values tell what they have beside the fields of their schemas; keys don't."""
        return self.part == "value" and bool(self._json_ids())

    def _of_json(self, records: DataFrame, max_record_bytes: int | None = None) -> DataFrame:
        """Return records whose value is the JSON behind the id; null if it is none, or too large."""
        value = F.col("value")
        mine = schema_id(value).isin(self._json_ids())
        if max_record_bytes is not None:
            mine = mine & (F.octet_length(value) <= max_record_bytes)
        return records.withColumn("value", F.when(mine, F.substring(value, _HEADER + 1, _REST)))

    def _rules(self, target: Target) -> Rules:
        return replace(self.rules, infer=True, any_case=target.any_case)

    def _keys(self) -> list[tuple[int, bytes]]:
        return sorted(self.writers)

    def _metric(self, key: tuple[int, bytes]) -> str:
        return f"{self.part}_schema_{key[0]}_{key[1].hex()}"

    def _is(self, key: tuple[int, bytes], value: Column) -> Column:
        # Ids are of fixed length, and an index prefix tells its own: what begins so is of that schema and message.
        id_, prefix = key
        start = b"\x00" + id_.to_bytes(4, "big") + prefix
        return F.coalesce(F.substring(value, 1, len(start)) == F.lit(start), F.lit(False))

    def _share(self, key: tuple[int, bytes], writer: Writer) -> "Share":
        value = F.col("value")
        return Share(self._is(key, value), F.substring(value, _HEADER + len(writer.prefix) + 1, _REST), writer)

    def _why(self) -> Column:
        why = F.concat(F.lit("Schema id "), F.col(_ID).cast("string"), F.lit(" names no message that is known."))
        for key, reason in self.refused.items():
            why = F.when(
                self._is(key, F.col("value")), F.lit(f"{reason[0].upper()}{reason[1:].rstrip('.')}.")
            ).otherwise(why)
        return why


MARKS: Mapping[Part, str] = MappingProxyType({"value": SCHEMA_IDS, "key": KEY_SCHEMA_IDS})


def schema_id(value: Column) -> Column:
    """Return the schema id that a value begins with; null if it doesn't begin with a zero byte and four more."""
    framed = (F.octet_length(value) >= _HEADER) & (F.substring(value, 1, 1) == F.lit(b"\x00"))
    return F.when(framed, F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint"))


def is_glue(value: Column) -> Column:
    """Return whether a value begins as the serializers of AWS Glue Schema Registry write it.

    A byte 3, a byte for the compression, which is 0 or 5, and the schema version's UUID:
    https://github.com/awslabs/aws-glue-schema-registry, AWSSchemaRegistryConstants.
    """
    begins = any_of([F.substring(value, 1, 2) == F.lit(start) for start in GLUE_STARTS])
    return (F.octet_length(value) >= GLUE_HEADER) & begins


def written_by_glue(value: Column) -> Column:
    """Return why such a value isn't decoded, and what to do."""
    digits = F.lower(F.hex(F.substring(value, 3, 16)))
    version = F.regexp_replace(digits, "^(.{8})(.{4})(.{4})(.{4})(.{12})$", "$1-$2-$3-$4-$5")
    return F.concat(F.lit(f"{GLUE_FORMAT}, schema version "), version, F.lit(f". {GLUE_NOT_READ}"))
