"""The names of the schemas of values, by their first bytes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.errors import SchemaNotSupportedError, TableError, UnknownSchemaError
from kafka_lake.formats.avro.task.schema import full_name
from kafka_lake.formats.base import Part
from kafka_lake.formats.protobuf.schema import message_of
from kafka_lake.formats.registered import ROOT_MESSAGE
from kafka_lake.formats.task.framing import FRAMINGS, ID_HEADERS, Framing, IdHeader, message_indexes
from kafka_lake.kafka.registry import WriterSchema

_INDEX_BYTES = 5
# A zigzag varint that isn't negative: bytes from 80 on, then one below 80; the first byte is even.
_INDEX_IN_HEX = "(?:[0-7][02468ACE]|[89A-F][02468ACE](?:[89A-F].){0,3}[0-7].)"


def index_prefix(value: Column, skipped: int) -> Column:
    """Return the bytes with a value's message indexes, for `message_indexes`; null if there are none."""
    first = F.hex(F.substring(value, skipped + 1, 1))
    count = F.shiftright(F.conv(first, 16, 10).cast("int"), 1)
    rest = F.hex(F.substr(value, F.lit(skipped + 2), count * _INDEX_BYTES))
    pattern = F.concat(F.lit(f"^({_INDEX_IN_HEX}){{"), count.cast("string"), F.lit("}"))
    indexes = F.when(count == 0, F.lit("")).otherwise(F.regexp_substr(rest, pattern))
    return F.when(first.rlike("^[0-7][02468ACE]$"), F.unhex(F.concat(first, indexes)))


def _framed_values(registry_kind: str) -> Column:
    """Return values with the ids before them that headers have."""
    value = F.coalesce(*map(_with_id_of, reversed(ID_HEADERS[registry_kind])), F.col("value"))
    return F.when(F.size("headers") > 0, value).otherwise(F.col("value"))


def _with_id_of(header: IdHeader) -> Column:
    """Return values with the id of a header before them; null without the header."""
    name = header.name.format("value")
    last = F.try_element_at(F.filter("headers", lambda given: given["key"] == name), F.lit(-1))
    return F.concat(F.lit(header.start), last["value"], F.col("value"))


_MOST_IDS = 1_000
_BY_START = sorted(FRAMINGS, key=lambda framing: len(framing.starts[0]), reverse=True)

HEAD = "_head"
"""The column with the first bytes of values, after the ids that headers have."""
UNSUPPORTED = ""
"""The name of schemas with ids of a kind that the registry can't look up."""


@dataclass(frozen=True)
class SchemaNames:
    """The names of schemas by the first bytes of values, see `HEAD`."""

    by_start: Mapping[bytes, str]
    registry_kind: str

    def with_heads(self, records: DataFrame) -> DataFrame:
        """Return records with the first bytes of values, which `column` compares."""
        longest = max(map(len, self.by_start), default=0)
        head = F.substring(_framed_values(self.registry_kind), 1, longest)
        return records.withColumn(HEAD, head) if longest else records

    def column(self) -> Column:
        """Return the name of a value's schema; null if it isn't among these."""
        column = F.lit(None).cast("string")
        for start, name in self.by_start.items():
            column = F.when(F.substring(HEAD, 1, len(start)) == F.lit(start), F.lit(name)).otherwise(column)
        return column


def schema_name(schema: WriterSchema, prefix: bytes = ROOT_MESSAGE) -> str | None:
    """Return the name of a schema; None if it has none, or is invalid.

    >>> schema_name(WriterSchema("AVRO", '{"type": "record", "namespace": "shop", "name": "Order", "fields": []}'))
    'shop.Order'

    >>> schema_name(WriterSchema("JSON", '{"title": "Order", "type": "object"}'))
    'Order'
    """
    try:
        if schema.kind == "PROTOBUF":
            return message_of(schema, message_indexes(prefix)[0]).name
        parsed = json.loads(schema.text)
    except (SchemaNotSupportedError, ValueError):
        return None
    if schema.kind == "JSON":
        title = parsed.get("title") if isinstance(parsed, dict) else None
        return title if title and isinstance(title, str) else None
    while isinstance(parsed, dict) and isinstance(parsed.get("type"), dict):
        parsed = parsed["type"]
    if isinstance(parsed, dict) and "name" in parsed:
        return full_name(parsed, "")
    # The schema may be the name of a referenced one.
    return parsed if isinstance(parsed, str) and "." in parsed else None


def names_in(records: DataFrame, values: Part) -> SchemaNames:
    """Return the names of the schemas of records' values."""
    topic, fetch = values.spec.topic, values.fetch_schema()
    framed = records.select(_framed_values(values.registry_kind).alias("value"))
    framed = framed.select("value", _start(F.col("value")).alias("start"))
    found = framed.select("start").filter("start is not null").distinct()
    starts = sorted(bytes(row["start"]) for row in found.limit(_MOST_IDS + 1).collect())
    if len(starts) > _MOST_IDS:
        raise TableError(
            f"Topic {topic}: where: schema: the values of one commit begin with more than {_MOST_IDS} "
            "different schema ids.",
            "They probably weren't written by a registry's serializer. Nothing was read into a table. Use header: "
            "or sql: in where:.",
        )
    names: dict[bytes, str | None] = {}
    protobuf: dict[bytes, WriterSchema] = {}
    for start in starts:
        try:
            if (id_ := _framing(start).id_of(start)) is None:
                continue
            if (schema := fetch(id_)).kind == "PROTOBUF":
                protobuf[start] = schema
            else:
                names[start] = schema_name(schema)
        except UnknownSchemaError:
            # Values with this id match no table.
            continue
        except SchemaNotSupportedError:
            names[start] = UNSUPPORTED
    if protobuf:
        if any(_framing(start).message is not message_indexes for start in protobuf):
            raise TableError(
                f"Topic {topic}: where: schema: doesn't support Protobuf in this registry's format.",
                "Nothing was read into a table. Use header: or sql: in where:.",
            )
        size = F.octet_length("start")
        prefixes = [
            F.when(size == length, index_prefix(F.col("value"), length)) for length in sorted(set(map(len, protobuf)))
        ]
        of_protobuf = framed.filter(F.col("start").isin([*protobuf]))
        chosen = of_protobuf.select("start", F.coalesce(*prefixes).alias("prefix")).filter("prefix is not null")
        for row in chosen.distinct().limit(_MOST_IDS).collect():
            start, prefix = bytes(row["start"]), bytes(row["prefix"])
            names[start + prefix] = schema_name(protobuf[start], prefix)
    by_start = {start: name for start, name in names.items() if name is not None}
    return SchemaNames(by_start, values.registry_kind)


def _start(value: Column) -> Column:
    """Return the bytes of a value up to its schema id; null if it is in no framing."""
    ids = [
        F.when(
            (F.octet_length(value) >= framing.size) & (F.substring(value, 1, len(start)) == F.lit(start)),
            F.substring(value, 1, framing.size),
        )
        for framing in _BY_START
        for start in framing.starts
    ]
    return F.coalesce(*ids)


def _framing(start: bytes) -> Framing:
    return next(framing for framing in _BY_START if start.startswith(framing.starts))
