"""What each Protobuf field becomes, for the page on formats."""

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
    (
        "Nothing f",
        "f: struct<_set:boolean>",
        "A message without fields: `_set` is true if it is set, else the struct is null. Fields that it gets later "
        "join the struct.",
    ),
    ("google.protobuf.Empty f", "f: boolean", "True if set, else null. It never gets fields."),
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
    (
        "a message that contains itself",
        "Columns where it is first, JSON text within itself: fields by name, bytes as base64, decimals and durations "
        "as text, times by ISO 8601. What isn't set is left out.",
    ),
    ("a record's message without fields", "Refused: a table has columns."),
    ("unknown fields, extensions", "No columns: the schema that the record names doesn't have them."),
    ("unknown numbers of a closed enum", "As those of an open one, their digits."),
)
"""What holds for fields of any type."""
