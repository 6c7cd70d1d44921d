"""Protobuf records: which columns a message has, how Python beside Spark fills them, and the prefix before messages."""

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from kafka_lake.ingest.decode import protobuf_worker
from kafka_lake.ingest.decode.protobuf_schema import ProtobufMessage, message_of

__all__ = [
    "RULES",
    "TYPES",
    "ProtobufMessage",
    "decode_protobuf",
    "index_prefix",
    "message_indexes",
    "message_of",
    "protobuf_type",
]

cloudpickle.register_pickle_by_value(protobuf_worker)

_HEADER_BYTES = 5

TYPES: tuple[tuple[str, str, str], ...] = (
    ("int32 f, sint32 f, sfixed32 f", "f: int", ""),
    ("int64 f, sint64 f, sfixed64 f", "f: bigint", ""),
    ("uint32 f, fixed32 f", "f: bigint", "Tables have no unsigned types; the next larger one holds all of it."),
    ("uint64 f, fixed64 f", "f: decimal(20,0)", "As above."),
    ("bool f", "f: boolean", ""),
    ("float f", "f: float", ""),
    ("double f", "f: double", ""),
    ("string f", "f: string", "A proto2 string that isn't UTF-8 is an error, as it always is in proto3."),
    ("bytes f", "f: binary", ""),
    (
        "Color f",
        "f: string",
        "An enum is the name of its value, the first of aliases; or the digits.",
    ),
    ("Line f", "f: struct<sku:string,count:int>", "A message is a struct, null if unset; so is a group."),
    ("Nothing f, google.protobuf.Empty f", "f: boolean", "A message without fields: true if set, else null."),
    ("repeated Line f", "f: array<struct<sku:string,count:int>>", "Empty if unset. Elements of any type."),
    ("map<int32, Color> f", "f: map<int,string>", "Empty if unset. Values of any type."),
    (
        "google.protobuf.Timestamp f",
        "f: timestamp, f__nanos: int",
        "Spark's timestamps have microseconds; the nanoseconds beyond them, 0 to 999, are in the second column. "
        "A time outside of the years 1 to 9999 is an error.",
    ),
    (
        "repeated google.protobuf.Timestamp f",
        "f: array<timestamp>, f__nanos: array<int>",
        "Likewise, element by element; in maps, key by key.",
    ),
    ("google.protobuf.Duration f", "f: decimal(21,9)", "Seconds, exact. More than 10,000 years are an error."),
    (
        "google.protobuf.Struct f, google.protobuf.Value f, google.protobuf.ListValue f",
        "f: string",
        "JSON, keys sorted. A number that isn't finite is an error.",
    ),
    ("google.protobuf.FieldMask f", "f: array<string>", "Paths."),
    ("google.protobuf.Any f", "f: struct<type_url:string,value:binary>", "The message within is left as bytes."),
    ("google.protobuf.Int32Value f", "f: int", "Wrappers are what they wrap, null if unset."),
    ("google.protobuf.UInt32Value f, google.protobuf.Int64Value f", "f: bigint", ""),
    ("google.protobuf.UInt64Value f", "f: decimal(20,0)", ""),
    ("google.protobuf.BoolValue f", "f: boolean", ""),
    ("google.protobuf.FloatValue f", "f: float", ""),
    ("google.protobuf.DoubleValue f", "f: double", ""),
    ("google.protobuf.StringValue f", "f: string", ""),
    ("google.protobuf.BytesValue f", "f: binary", ""),
    (
        "confluent.type.Decimal f [(confluent.field_meta).params = {key: 'precision', value: '9'}, "
        "(confluent.field_meta).params = {key: 'scale', value: '2'}]",
        "f: decimal(9,2)",
        "As Confluent's serializers write it. A number that doesn't fit is an error.",
    ),
    ("confluent.type.Decimal f", "f: string", "Without precision and scale: text as of Java's BigDecimal."),
    ("google.type.LatLng f", "f: struct<latitude:double,longitude:double>", "Other known messages are like any other."),
)
"""Fields of a message; the columns that they become; what else is to be known."""

RULES: tuple[tuple[str, str], ...] = (
    ("proto3 field without `optional`", "Its default value where it is unset: nobody can tell the two apart."),
    ("proto3 `optional`, `oneof`, proto2 `optional`", "Null where it is unset, also where proto2 declares a default."),
    ("proto2 `required`", "A record that lacks it is a dead letter."),
    ("names", "As in the .proto file."),
    ("a message that contains itself", "Refused, the field is named; Struct, Value and ListValue are JSON text."),
    ("a record's message without fields", "Refused: a table has columns."),
    ("unknown fields, extensions", "No columns: the schema that the record names doesn't have them."),
    ("unknown numbers of a closed enum", "As those of an open one, their digits."),
)
"""What holds for fields of any type."""


def protobuf_type(message: ProtobufMessage) -> T.StructType:
    """Return a message's columns, all nullable; `TYPES` says which."""
    return T.StructType([_column(field) for field in protobuf_worker.arrow_type(message.files, message.name)])


def decode_protobuf(payload: Column, message: ProtobufMessage) -> Column:
    """Return ``struct<decoded, error>``: the message, or in one sentence why there is none. Both are null for null.

    Runs in Python beside each executor, which needs the packages ``protobuf`` and ``pyarrow``, not this one. The
    column counts as nondeterministic so that Spark computes it once, however often parts of it are used: select it
    under a name, then use that.

    Args:
        payload: Bare messages, without a registry's prefix; null where a record is not of this schema.
        message: What they are.
    """
    columns = protobuf_worker.arrow_type(message.files, message.name)
    # Without the columns' comments: Spark would compare them with what comes back.
    kind = from_arrow_type(pa.struct([pa.field("decoded", columns), pa.field("error", pa.string())]))
    decode = F.arrow_udf(protobuf_worker.decoder(message.files, message.name), kind)
    return decode.asNondeterministic()(payload)


def message_indexes(prefix: bytes) -> tuple[tuple[int, ...], int]:
    r"""Return the message indexes that bytes begin with, and how many bytes they take.

    Confluent's rule: the number of indexes, then each, as zigzag varints; ``[0]``, the most frequent, is a mere 0
    (https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format).

    Raises:
        ValueError: If they begin with none.

    >>> message_indexes(b"\x00rest"), message_indexes(b"\x04\x02\x00rest")
    (((0,), 1), ((1, 0), 3))
    """
    count, end = _zigzag(prefix, 0)
    indexes = []
    for _ in range(count):
        index, end = _zigzag(prefix, end)
        indexes.append(index)
    return tuple(indexes) or (0,), end


def index_prefix(value: Column) -> Column:
    """Return the bytes of a record's message indexes, for `message_indexes`; null if it has none.

    Args:
        value: A record in Confluent's format: a zero, four bytes of schema id, indexes, message. None of the indexes
            is beyond 63, else there is no answer: no schema in sane hands has as many messages.
    """
    start = F.lit(_HEADER_BYTES + 1)
    count = F.shiftright(F.conv(F.hex(F.substr(value, start, F.lit(1))), 16, 10).cast("int"), 1)
    prefix = F.substr(value, start, count + F.lit(1))
    is_whole = F.octet_length(prefix) == count + F.lit(1)
    return F.when(is_whole & F.hex(prefix).rlike("^([0-7][02468ACE])+$"), prefix)


def _zigzag(raw: bytes, start: int) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(raw[start : start + 5]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            if number & 1:
                break
            return number >> 1, start + shift + 1
    raise ValueError(f"No message indexes: {raw[: start + 5].hex(' ')}")


def _column(field: pa.Field) -> T.StructField:
    metadata = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
    return T.StructField(field.name, _spark_type(field.type), metadata=metadata)


def _spark_type(kind: pa.DataType) -> T.DataType:
    if pa.types.is_struct(kind):
        return T.StructType([_column(field) for field in kind])
    if pa.types.is_list(kind):
        return T.ArrayType(_spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return T.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    return from_arrow_type(kind)
