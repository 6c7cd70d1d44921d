"""What each Avro type becomes, for the page on formats."""

TYPES: tuple[tuple[str, str, str, str, str], ...] = (
    ("null", "", "", "", "No column. As a map's value: string, always null. An array of it is refused."),
    ("boolean", "", "boolean", "boolean", ""),
    ("int", "", "int", "int", ""),
    ("int", "date", "date", "date", ""),
    ("int", "time-millis", "string", "string", "`HH:MM:SS.ffffff`, which sorts by time: Spark has no such type."),
    ("long", "", "bigint", "long", ""),
    ("long", "time-micros", "string", "string", "`HH:MM:SS.ffffff`, which sorts by time."),
    ("long", "timestamp-millis", "timestamp", "timestamptz", ""),
    ("long", "timestamp-micros", "timestamp", "timestamptz", ""),
    ("long", "timestamp-nanos", "bigint", "long", "Nanoseconds since 1970-01-01 UTC, all of them."),
    ("long", "local-timestamp-millis", "timestamp_ntz", "timestamp", ""),
    ("long", "local-timestamp-micros", "timestamp_ntz", "timestamp", ""),
    ("long", "local-timestamp-nanos", "bigint", "long", "Nanoseconds since 1970-01-01 00:00 of no time zone."),
    ("float", "", "float", "float", ""),
    ("double", "", "double", "double", ""),
    ("string", "", "string", "string", "Bytes that are not UTF-8 make the record malformed."),
    ("string", "uuid", "string", "string", "In lower case; text that is no UUID stays as it is."),
    ("bytes", "", "binary", "binary", ""),
    ("bytes, fixed", "decimal", "decimal(p, s)", "decimal(p, s)", "Up to 38 digits."),
    ("bytes, fixed", "decimal", "string", "string", "Beyond 38 digits: all as text, `-12.50`; of at most 128 bytes."),
    ("bytes", "big-decimal", "string", "string", "All digits as text; `12E3` where the scale isn't 0 to 1024."),
    ("fixed", "", "binary", "binary", ""),
    ("fixed", "uuid", "string", "string", "Of 16 bytes; `8-4-4-4-12` in lower case."),
    ("fixed", "duration", "struct<months: bigint, days: bigint, millis: bigint>",
     "struct<months: long, days: long, millis: long>", "Of 12 bytes; the three counts are kept apart."),
    ("enum", "", "string", "string", "The symbol."),
    ("record", "", "struct<…>", "struct<…>", "A field's doc becomes the column's comment. At the root: the columns."),
    ("record without fields", "", "struct<_set: boolean>", "struct<_set: boolean>",
     "`_set` is true where there is one. Fields that it gets later join the struct. An array of them is refused."),
    ("array", "", "array<…>", "list<…>", ""),
    ("map", "", "map<string, …>", "map<string, …>", "Of a key that is there twice, the last counts."),
    ("union of null and T", "", "T", "T", "A union of one type is that type."),
    ("union of int and long", "", "bigint", "long", "Without logical types."),
    ("union of float and double", "", "double", "double", ""),
    ("union of several", "", "struct<…>", "struct<…>",
     "A field for each type, named by it: `int`, `map`, a record's, enum's or fixed's name without its namespace, "
     "and with it where that is ambiguous. One of them is set."),
    ("a type that contains itself", "", "string", "string",
     "Columns where it is first, JSON text within itself: bytes as base64, decimals as text, times by ISO 8601."),
)  # fmt: skip
"""What each Avro type becomes: Avro type, logical type, Spark type, Iceberg type, what else there is to know.

Every column, element and value is nullable, whatever the schema says: a table outlives the schema of one writer.
Logical types that are unknown, or not valid for their type, count as absent, as the specification says.
"""
