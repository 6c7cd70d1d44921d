"""The names of the schemas of values, by the schema ids in their first bytes."""

import json
from collections.abc import Callable, Iterator, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.errors import SchemaNotSupportedError, TableError, UnknownSchemaError
from kafka_lake.formats.avro.task.schema import full_name
from kafka_lake.formats.protobuf.schema import message_of
from kafka_lake.formats.registered import ROOT_MESSAGE
from kafka_lake.formats.task.registered import HEADER, message_indexes
from kafka_lake.kafka.registry import WriterSchema

_INDEX_BYTES = 5
# A zigzag varint that isn't negative: bytes from 80 on, then one below 80; the first byte is even.
_INDEX_IN_HEX = "(?:[0-7][02468ACE]|[89A-F][02468ACE](?:[89A-F].){0,3}[0-7].)"


def index_prefix(value: Column) -> Column:
    """Return the bytes with a value's message indexes, for `message_indexes`; null if there are none."""
    first = F.hex(F.substring(value, HEADER + 1, 1))
    count = F.shiftright(F.conv(first, 16, 10).cast("int"), 1)
    rest = F.hex(F.substr(value, F.lit(HEADER + 2), count * _INDEX_BYTES))
    pattern = F.concat(F.lit(f"^({_INDEX_IN_HEX}){{"), count.cast("string"), F.lit("}"))
    indexes = F.when(count == 0, F.lit("")).otherwise(F.regexp_substr(rest, pattern))
    return F.when(first.rlike("^[0-7][02468ACE]$"), F.unhex(F.concat(first, indexes)))


_MOST_IDS = 1_000

SchemaNames = Mapping[bytes, str | None]
"""Schema names by the first bytes of values; None for ids that the registry doesn't have."""


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
        return title if isinstance(title, str) else None
    while isinstance(parsed, dict) and isinstance(parsed.get("type"), dict):
        parsed = parsed["type"]
    if isinstance(parsed, dict) and "name" in parsed:
        return full_name(parsed, "")
    # The schema may be the name of a referenced one.
    return parsed if isinstance(parsed, str) and "." in parsed else None


def names_in(records: DataFrame, topic: str, fetch: Callable[[int], WriterSchema]) -> SchemaNames:
    """Return the names of the schemas of records' values, by the first bytes of the values."""
    value = F.col("value")
    ids = records.select(schema_id(value).alias("id")).filter("id is not null").distinct()
    id_list = sorted(row["id"] for row in ids.limit(_MOST_IDS + 1).collect())
    if len(id_list) > _MOST_IDS:
        raise TableError(
            f"Topic {topic}: where: schema: the values of one commit begin with more than {_MOST_IDS} "
            "different schema ids.",
            "They probably weren't written by a registry's serializer. Nothing was read into a table. Use header: "
            "or sql: in "
            "where:.",
        )
    schemas = dict(_fetched(id_list, fetch))
    names = {_start(id_): schema_name(schema) for id_, schema in schemas.items() if schema.kind != "PROTOBUF"}
    if protobuf := [id_ for id_, schema in schemas.items() if schema.kind == "PROTOBUF"]:
        chosen = records.filter(schema_id(value).isin(protobuf))
        prefixes = chosen.select(schema_id(value).alias("id"), index_prefix(value).alias("prefix"))
        for row in prefixes.filter("prefix is not null").distinct().limit(_MOST_IDS).collect():
            prefix = bytes(row["prefix"])
            names[_start(row["id"]) + prefix] = schema_name(schemas[row["id"]], prefix)
    unknown = dict.fromkeys(_start(id_) for id_ in id_list if id_ not in schemas)
    return {**{start: name for start, name in names.items() if name is not None}, **unknown}


def name_of(value: Column, names: SchemaNames) -> Column:
    """Return the name of a value's schema; null if it isn't among these."""
    column = F.lit(None).cast("string")
    for start, name in names.items():
        if name is not None:
            column = F.when(F.substring(value, 1, len(start)) == F.lit(start), F.lit(name)).otherwise(column)
    return column


def schema_id(value: Column) -> Column:
    """Return the schema id at the start of a value; null if it has no header."""
    framed = (F.octet_length(value) >= HEADER) & (F.substring(value, 1, 1) == F.lit(b"\x00"))
    return F.when(framed, F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint"))


def _fetched(ids: list[int], fetch: Callable[[int], WriterSchema]) -> Iterator[tuple[int, WriterSchema]]:
    for id_ in ids:
        try:
            yield id_, fetch(id_)
        except UnknownSchemaError:
            # Values with this id match no table.
            continue


def _start(id_: int) -> bytes:
    return b"\x00" + id_.to_bytes(4, "big")
