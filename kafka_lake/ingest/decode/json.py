"""JSON values: `from_json` in the JVM, strict: all but whole JSON objects of the columns' types are dead letters."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode import NOT_JSON, NULL_IN_REQUIRED_COLUMN, TOO_DEEP, TOO_LARGE, WRONG_TYPE
from kafka_lake.ingest.decode.decoder import MESSAGE, Learned, Nothing, too_large
from kafka_lake.ingest.decode.project import Misfit, cut, null_required, project, reasons, short, variant_path
from kafka_lake.ingest.decode.target import Target

CORRUPT = "__kafka_lake_corrupt"
EXACT_TEXT = "kafka-lake.exact-text"
MAX_DEPTH = 64
"""Levels of objects and arrays that columns are inferred from."""
_PARSED, _RAW, _SEEN = "__kafka_lake_parsed", "__kafka_lake_raw", "__kafka_lake_seen"
_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
_VARIANT = "__kafka_lake_variant"
_NAME_AND_KIND = "array<struct<name: string, kind: string>>"
_DOUBLE_DIGITS = 15
_ELEMENT = 0
Path = tuple[str | int, ...]
# No value can hold it: it is made anew in each process.
_END = uuid4().hex


def decode_json(
    records: DataFrame,
    columns: T.StructType | Target,
    *,
    max_record_bytes: int | None = None,
    max_depth: int | None = None,
    messages: bool = True,
) -> DataFrame:
    """Add ``decoded``, ``error_class`` and ``error_message`` to records whose value is JSON.

    Args:
        records: What `read` gave; null values (tombstones) get all three as null.
        columns: Columns to look for. Fields that feed none are left aside; not-null columns must be there.
        max_record_bytes: Longer values are not parsed, they are ``too_large``; None for no limit.
        max_depth: Values of more levels of objects and arrays are ``too_deep``; None for no limit.
        messages: Whether ``error_message`` says anything; for who doesn't select it, building it is time lost.

    Returns:
        The records with three more columns, one row for each, none lost. Messages cost nothing where they are not
        selected: they take a value apart again.
    """
    target = columns if isinstance(columns, Target) else Target(columns)
    asked = asked_fields(target)
    text = F.col("value").cast("string")
    size = F.octet_length(F.col("value"))
    whole = isinstance(asked, T.VariantType)
    parsed = F.try_parse_json(text) if whole else _parse(asked)
    if max_record_bytes is not None:
        parsed = F.when(size <= max_record_bytes, parsed)
    corrupt = F.col(_PARSED).isNull() if whole else F.col(_PARSED).isNull() | _field(_PARSED, CORRUPT).isNotNull()
    if target.columns.fields and asked.simpleString() == target.columns.simpleString():
        # One expression, however many columns there are.
        row, misfits = F.col(_PARSED).dropFields(CORRUPT), list[Misfit]()
    else:
        row, misfits = project(F.col(_PARSED), asked, target)
    misfit, misfit_message = reasons(misfits)

    error_class: Column = F.when(F.col("value").isNull(), F.lit(None).cast("string"))
    if max_record_bytes is not None:
        error_class = error_class.when(size > max_record_bytes, F.lit(TOO_LARGE))
    error_class = error_class.when(~_one_object(text), F.lit(NOT_JSON))
    if max_depth is not None:
        error_class = error_class.when(~_shallow(text, max_depth), F.lit(TOO_DEEP))
    # What a variant refuses is no strict JSON: a field that is there twice, single quotes.
    error_class = error_class.when(corrupt & F.try_parse_json(text).isNull(), F.lit(NOT_JSON))
    error_class = error_class.when(corrupt, F.lit(WRONG_TYPE))
    if misfits:
        error_class = error_class.when(misfit, F.lit(WRONG_TYPE))
    nulls = null_required(row, target.columns)
    if nulls is not None:
        error_class = error_class.when(nulls != "", F.lit(NULL_IN_REQUIRED_COLUMN))

    decoded = records.withColumn(_PARSED, parsed).select(
        *records.columns, _PARSED, row.alias("decoded"), error_class.alias("error_class")
    )
    if not messages:
        return decoded.drop(_PARSED).withColumn("error_message", F.lit(None).cast("string"))

    found = F.col("error_class")
    wrong = F.lit("A field doesn't fit its column.") if whole else _wrong_type(asked)
    said = F.when(misfit, F.substring(misfit_message, 1, MESSAGE)).otherwise(wrong) if misfits else wrong
    message: Column = F.when(found == NOT_JSON, _not_json(text)).when(found == WRONG_TYPE, said)
    if nulls is not None:
        said = F.concat(F.lit("Required, but null or missing: "), nulls, F.lit("."))
        message = message.when(found == NULL_IN_REQUIRED_COLUMN, F.substring(said, 1, MESSAGE))
    if max_record_bytes is not None:
        message = message.when(found == TOO_LARGE, too_large(size, max_record_bytes))
    if max_depth is not None:
        said = F.lit(f"The value has more than {max_depth} levels of objects and arrays.")
        message = message.when(found == TOO_DEEP, said)
    return (
        decoded.withColumn(_RAW, F.when(found == WRONG_TYPE, F.from_json(text, "map<string, string>")))
        .withColumn(_SEEN, F.when(found == WRONG_TYPE, F.from_json(text, "map<string, variant>")))
        .select(*records.columns, "decoded", "error_class", message.alias("error_message"))
    )


def _shallow(text: Column, levels: int) -> Column:
    """Return whether a JSON text has at most so many levels; quick for one with few brackets, exact for others."""
    size = F.octet_length(text)
    opened = [size - F.octet_length(F.replace(text, F.lit(bracket))) for bracket in "{["]
    # Without escapes, strings and all that is no bracket; each step then takes the innermost level away. No pattern
    # has a repeated group, whose matching would be as deep a recursion as the value is long.
    brackets = F.regexp_replace(F.regexp_replace(text, r"\\.", ""), '"[^"]*+"', "")
    brackets = F.regexp_replace(brackets, r"[^\[\]{}]++", "")
    left = F.aggregate(
        F.sequence(F.lit(1), F.lit(levels)), brackets, lambda rest, _: F.regexp_replace(rest, r"\[\]|\{\}", "")
    )
    return (size <= 2 * levels) | (opened[0] + opened[1] <= levels) | (left == "")


def asked_fields(target: Target) -> T.StructType | T.VariantType:
    """Return the type to parse records as: a field for each name that feeds columns.

    A field that feeds columns of several types is a variant. So is an object with two fields that differ in case
    only, since Spark can't tell them apart in a struct.
    """
    return _asked(target.columns, target, "")


def _asked(columns: T.StructType, target: Target, prefix: str) -> T.StructType | T.VariantType:
    kinds: dict[str, list[T.DataType]] = {}
    for column in columns:
        kind = _asked_type(column.dataType, target, f"{prefix}{column.name}")
        for name in target.feeds(f"{prefix}{column.name}", column.name):
            kinds.setdefault(name, []).append(kind)
    if len({name.lower() for name in kinds}) < len(kinds):
        return T.VariantType()
    return T.StructType(
        [T.StructField(name, each[0] if len(each) == 1 else T.VariantType()) for name, each in kinds.items()]
    )


def _asked_type(kind: T.DataType, target: Target, path: str) -> T.DataType:
    if isinstance(kind, T.StructType):
        return _asked(kind, target, f"{path}.")
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_asked_type(kind.elementType, target, f"{path}.element"))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, _asked_type(kind.valueType, target, f"{path}.value"))
    # A number that is parsed as text goes through a double; in a variant it keeps its digits.
    return T.VariantType() if path in target.exact else kind


def _parse(columns: T.StructType) -> Column:
    kinds = T.StructType([*columns.fields, T.StructField(CORRUPT, T.StringType())])
    return F.from_json(F.col("value").cast("string"), kinds, _OPTIONS)


def _one_object(text: Column) -> Column:
    # from_json stops at the end of the first object and would lose what follows it: `{"id": 1} {"id": 2}`.
    # So put the value into an array before a mark that it can't hold. The mark is the second element only if
    # the value is exactly one, and doesn't close the array itself: `{"id": 1}],[{"id": 2}`.
    array = F.concat(F.lit("["), text, F.lit(f',"{_END}"]'))
    alone = F.coalesce(F.get_json_object(array, "$[1]") == _END, F.lit(False))
    return F.is_valid_utf8(text) & F.rlike(text, F.lit(r"^\s*\{")) & alone


def _not_json(text: Column) -> Column:
    begins = F.regexp_extract(text, r"^\s*(\S)", 1)
    is_json = F.try_parse_json(text).isNotNull()
    start = cut(F.ltrim(text))
    return (
        F.when(
            ~F.is_valid_utf8(text),
            F.concat(F.lit("The value is not UTF-8; it begins with 0x"), F.hex(F.substring("value", 1, 8)), F.lit(".")),
        )
        .when(F.octet_length("value") == 0, F.lit("The value is empty."))
        .when(begins == "", F.lit("The value is white space only."))
        .when(begins == "\ufeff", F.lit("The value begins with a byte order mark."))
        # A variant is made of what comes first and doesn't look further, as from_json.
        .when(is_json & (begins == "{"), F.lit("The value goes on after its first JSON object."))
        .when(is_json & (begins == "["), F.concat(F.lit("The value is a JSON array, no object: "), start, F.lit(".")))
        .when(is_json, F.concat(F.lit("The value is a JSON scalar, no object: "), start, F.lit(".")))
        .when(
            _one_object(text),
            F.lit("The value is not strict JSON: a field is there twice, or text is in single quotes."),
        )
        .otherwise(F.concat(F.lit("The value is broken JSON; it begins with "), start, F.lit(".")))
    )


def _wrong_type(columns: T.StructType) -> Column:
    # One expression for all columns: one for each would take Spark half a minute to plan for a table of 200.
    kinds = _constant([{"name": f.name, "kind": short(f.dataType)} for f in columns], _NAME_AND_KIND)
    misfits = _misfits(columns)

    def said(column: Column) -> Column:
        seen = F.try_element_at(F.col(_SEEN), column["name"])
        # Text in its quotes, all else as it was written: 3.0 is no int, and a variant would call it 3.
        text = F.schema_of_variant(seen) == "STRING"
        shown = F.when(text, F.to_json(seen)).otherwise(F.try_element_at(F.col(_RAW), column["name"]))
        return F.concat(
            F.lit("Column "), column["name"], F.lit(" ("), column["kind"], F.lit(") got "), cut(shown), F.lit(".")
        )

    wrong = F.filter(kinds, lambda column: F.array_contains(misfits, column["name"]))
    named = F.substring(F.array_join(F.transform(wrong, said), " "), 1, MESSAGE)
    return F.when(named != "", named).otherwise(F.lit(f"A field doesn't fit its column: {short(columns, 500)}."))


def _misfits(columns: T.StructType) -> Column:
    """Return the names of the fields of a record whose value doesn't fit what they were parsed as."""
    nested = [f for f in columns if isinstance(f.dataType, T.StructType | T.ArrayType | T.MapType)]
    # What fits of a nested value may be there without the rest.
    partly = [F.when(_parse(T.StructType([f])).getField(CORRUPT).isNotNull(), F.lit(f.name)) for f in nested]
    misfits = F.array_except(F.map_keys(F.map_filter(_RAW, lambda _, raw: raw.isNotNull())), _there())
    return F.array_compact(F.array_union(misfits, F.array(*partly))) if partly else misfits


def _there() -> Column:
    """Return the names of the columns that got a value."""
    keys = F.json_object_keys(F.to_json(F.col(_PARSED), {"ignoreNullFields": "true"}))
    return F.coalesce(keys, F.array().cast("array<string>"))


def _constant(values: list[Any], kind: str) -> Column:
    return F.from_json(F.lit(json.dumps(values)), kind)


def _object(text: Column) -> Column:
    """Return a JSON object as a variant, null for all else: among objects, an array would make the whole anything."""
    return F.when(F.rlike(text, F.lit(r"^\s*\{")), F.try_parse_json(text))


def observed_schema(*, max_record_bytes: int | None = None, max_depth: int | None = None) -> Column:
    """Return an aggregate over records that tells, as text, the schema that their JSON values have together.

    Args:
        max_record_bytes: Longer values are not parsed and add nothing; None for no limit.
        max_depth: Values of more levels add nothing either; None for no limit.
    """
    text = F.col("value").cast("string")
    parsed = _object(text)
    if max_depth is not None:
        # The schema of a value of a thousand levels is deeper than Spark's stack: it would end the JVM.
        parsed = F.when(_shallow(text, max_depth), parsed)
    if max_record_bytes is not None:
        parsed = F.when(F.octet_length(F.col("value")) <= max_record_bytes, parsed)
    return F.schema_of_variant_agg(parsed)


def schema_from_observation(observed: str | None, doubles: Collection[Path] = ()) -> T.StructType:
    """Turn what `observed_schema` found into columns.

    Whole numbers are bigint, or decimal(38,0) beyond 64 bits; fractions are double as far as doubles hold them, else
    text; fields of mixed types keep their JSON as text; fields that were always null are left out until they are not.

    Args:
        observed: For example ``OBJECT<id: BIGINT, tags: ARRAY<STRING>>``; None or another type if no value was
            an object.
        doubles: Paths of numbers of more than 15 digits that doubles hold all the same, as `long_doubles` found them.

    Returns:
        The columns, all nullable, in alphabetical order; none if no object was seen.
    """
    column = _column_type(_observed_type(observed), (), doubles)
    return column if isinstance(column, T.StructType) else T.StructType([])


def long_doubles(records: DataFrame, seen: T.DataType | None) -> set[Path]:
    """Return the paths of numbers that may have more digits than a double holds, and in these records don't.

    What records show of a number is the digits of all together: of 5 and 0.25 as many as if a long had fractions. And
    a double's own digits may be 17. So the numbers themselves are looked at, in a pass of its own, which is only needed
    where such a field is new.

    Args:
        records: The records that were observed.
        seen: What they showed together; None for nothing.
    """
    value = F.col(_VARIANT)
    checks = list(_exact(value, seen, ())) if seen is not None else []
    if not checks:
        return set()
    objects = records.select(_object(F.col("value").cast("string")).alias(_VARIANT))
    named = [F.bool_and(F.coalesce(check, F.lit(True))).alias(f"c{n}") for n, (_, check) in enumerate(checks)]
    found = objects.agg(*named).collect()[0]
    return {path for n, (path, _) in enumerate(checks) if found[f"c{n}"] is not False}


def _exact(value: Column, seen: T.DataType, path: Path) -> Iterator[tuple[Path, Column]]:
    """Give the paths of long numbers within a variant, and whether a double holds each."""
    if isinstance(seen, T.StructType):
        for field in seen:
            yield from _exact(
                F.try_variant_get(value, variant_path(field.name), "variant"), field.dataType, (*path, field.name)
            )
    elif isinstance(seen, T.ArrayType):
        items, inner = F.try_variant_get(value, "$", "array<variant>"), (*path, _ELEMENT)

        def all_are(below: Path) -> Column:
            return F.forall(items, lambda element: dict(_exact(element, seen.elementType, inner))[below])

        yield from [(below, all_are(below)) for below, _ in _exact(value, seen.elementType, inner)]
    elif isinstance(seen, T.DecimalType) and seen.precision > _DOUBLE_DIGITS:
        text = F.try_variant_get(value, "$", "string")
        kind = f"decimal(38,{seen.scale})"
        # A double as text has the fewest digits that tell it from all others.
        yield path, text.isNull() | F.coalesce(text.try_cast(kind) == text.cast("double").try_cast(kind), F.lit(False))


def _observed_type(observed: str | None) -> T.DataType:
    text = (observed or "VOID").replace("OBJECT<>", "VOID").replace("OBJECT<", "STRUCT<")
    parsed: T.DataType = T._parse_datatype_string(text)
    return parsed


def _long_numbers(seen: T.DataType, kind: T.DataType, target: Target, path: str) -> Iterator[str]:
    """Give the paths of text columns whose values are numbers of more digits than a double holds."""
    if isinstance(seen, T.StructType) and isinstance(kind, T.StructType):
        prefix = f"{path}." if path else ""
        for column in kind:
            below = f"{prefix}{column.name}"
            for name in target.feeds(below, column.name):
                if name in seen.fieldNames():
                    yield from _long_numbers(seen[name].dataType, column.dataType, target, below)
    elif isinstance(seen, T.ArrayType) and isinstance(kind, T.ArrayType):
        yield from _long_numbers(seen.elementType, kind.elementType, target, f"{path}.element")
    elif isinstance(kind, T.StringType) and isinstance(seen, T.DecimalType) and seen.precision > _DOUBLE_DIGITS:
        yield path


def _column_type(seen: T.DataType, path: Path, doubles: Collection[Path]) -> T.DataType | None:
    if isinstance(seen, T.StructType):
        fields = [(f.name, _column_type(f.dataType, (*path, f.name), doubles)) for f in seen.fields]
        kept = [T.StructField(name, kind) for name, kind in fields if kind is not None]
        return T.StructType(kept) if kept else None
    if isinstance(seen, T.ArrayType):
        element = _column_type(seen.elementType, (*path, _ELEMENT), doubles)
        return T.ArrayType(element) if element is not None else None
    if isinstance(seen, T.NullType):
        return None
    if isinstance(seen, T.VariantType):
        return T.StringType()
    if isinstance(seen, T.DecimalType):
        # A whole number of 64 bits is a bigint there: this one has a fraction, be it .0, or more digits.
        if seen.precision <= _DOUBLE_DIGITS or path in doubles:
            return T.DoubleType()
        return T.StringType() if seen.scale else T.DecimalType(38, 0)
    return seen


def nullable_all(kind: T.DataType) -> T.DataType:
    """Return the type with every nested field, element and value nullable: JSON promises nothing."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, nullable_all(f.dataType)) for f in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(nullable_all(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, nullable_all(kind.valueType))
    return kind


def _field(struct: str, name: str) -> Column:
    return F.col(struct).getField(name)


@dataclass(frozen=True)
class Json(Nothing):
    """Decodes JSON objects, by declared columns or by those of the table and what the records show.

    Args:
        declared: Columns as the settings declare them; None to infer.
        infer_timestamps: Whether text that is an ISO 8601 date or time in all records of a batch becomes a column of
            that type when it is first seen.
        widen: Whether records that don't fit are looked at for types that the columns could be given.
        shown: What the records look like, as far as the table doesn't know it.
        misfits: What those look like that fitted no row, by each pass.
        exact: Paths of text columns that have got numbers of more digits than a double holds.
    """

    declared: Target | None = None
    infer_timestamps: bool = False
    widen: bool = True
    shown: T.StructType | None = None
    misfits: tuple[T.StructType, ...] = ()
    exact: frozenset[str] = frozenset()

    @property
    def fixed(self) -> Target | None:
        """The declared columns."""
        return self.declared

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what the records have shown."""
        shown = [] if self.shown is None else [("the records", self.shown)]
        return [*shown, *(("the records that don't fit", fields) for fields in self.misfits)]

    def decode(
        self, records: DataFrame, target: Target, *, max_record_bytes: int | None = None, messages: bool = True
    ) -> DataFrame:
        """Add the three columns of every decoder's result to records."""
        target = replace(target, exact=self.exact)
        depth = MAX_DEPTH if self.declared is None else None
        return decode_json(records, target, max_record_bytes=max_record_bytes, max_depth=depth, messages=messages)

    def metrics(self, max_record_bytes: int | None = None) -> Sequence[Column]:
        """Return the schema that the values have together, unless the columns are declared."""
        if self.declared is not None:
            return ()
        return [observed_schema(max_record_bytes=max_record_bytes, max_depth=MAX_DEPTH).alias("observed")]

    def learn(self, counts: Mapping[str, Any], records: DataFrame, target: Target) -> Learned | None:
        """Return a decoder that knows the new fields of a pass, and how those differ that didn't fit."""
        if self.declared is not None:
            return None
        observed = counts["observed"]
        doubles = long_doubles(records, _unknown(_observed_type(observed), target.columns, target, ""))
        seen = _new_only(schema_from_observation(observed, doubles), target.columns, target, "")
        if self.infer_timestamps:
            seen = with_times(records, seen, target)
        exact = self.exact | set(_long_numbers(_observed_type(observed), target.columns, target, ""))
        misfits = self.misfits
        if counts["wrong_type"] and (self.widen or _can_widen(target.columns)):
            found = _observed_misfits(records, target)
            misfits += (found,) if found is not None and found not in misfits else ()
        return Learned(replace(self, shown=seen, misfits=misfits, exact=exact), again=exact != self.exact)

    def marks(self) -> Mapping[str, str]:
        """Return which text columns get long numbers."""
        return {EXACT_TEXT: json.dumps(sorted(self.exact))} if self.exact else {}

    def look(self, records: DataFrame) -> "Json":
        """Return a decoder that knows what records look like, in a pass of its own unless that is declared."""
        if self.declared is not None:
            return self
        observed = records.agg(observed_schema(max_depth=MAX_DEPTH).alias("observed")).collect()[0]["observed"]
        seen = schema_from_observation(observed, long_doubles(records, _observed_type(observed)))
        if self.infer_timestamps:
            seen = with_times(records, seen, Target(T.StructType([])))
        return replace(self, shown=seen)


def _unknown(seen: T.DataType, kind: T.DataType, target: Target, path: str) -> T.DataType | None:
    """Return what of a type that was seen feeds no column yet, within what does; None if nothing."""
    if isinstance(seen, T.StructType) and isinstance(kind, T.StructType):
        prefix = f"{path}." if path else ""
        feeds = _fed(kind, target, prefix)
        fields = []
        for field in seen:
            column = feeds.get(field.name)
            below = f"{prefix}{column.name}" if column else ""
            new = _unknown(field.dataType, column.dataType, target, below) if column else field.dataType
            fields += [] if new is None else [T.StructField(field.name, new)]
        return T.StructType(fields) if fields else None
    if isinstance(seen, T.ArrayType) and isinstance(kind, T.ArrayType):
        element = _unknown(seen.elementType, kind.elementType, target, f"{path}.element")
        return None if element is None else T.ArrayType(element)
    return None


def _fed(columns: T.StructType, target: Target, prefix: str) -> dict[str, T.StructField]:
    """Return the column that each field feeds, the first one where it feeds several."""
    return {name: c for c in reversed(columns) for name in target.feeds(f"{prefix}{c.name}", c.name)}


def _new_only(seen: T.StructType, columns: T.StructType, target: Target, prefix: str) -> T.StructType:
    """Return what was seen, the fields that feed columns with those columns' types: they have all been parsed."""
    feeds = _fed(columns, target, prefix)
    fields = []
    for field in seen:
        column = feeds.get(field.name)
        kind = (
            field.dataType if column is None else _grown(field.dataType, column.dataType, target, prefix + column.name)
        )
        fields.append(T.StructField(field.name, kind))
    return T.StructType(fields)


def _grown(seen: T.DataType, kind: T.DataType, target: Target, path: str) -> T.DataType:
    if isinstance(seen, T.StructType) and isinstance(kind, T.StructType):
        return _new_only(seen, kind, target, f"{path}.")
    if isinstance(seen, T.ArrayType) and isinstance(kind, T.ArrayType):
        return T.ArrayType(_grown(seen.elementType, kind.elementType, target, f"{path}.element"))
    return kind


def _can_widen(columns: T.DataType) -> bool:
    if isinstance(columns, T.StructType):
        return any(_can_widen(f.dataType) for f in columns)
    if isinstance(columns, T.ArrayType):
        return _can_widen(columns.elementType)
    return isinstance(columns, T.IntegerType | T.FloatType | T.DecimalType)


def _observed_misfits(records: DataFrame, target: Target) -> T.StructType | None:
    """Return the fields of records that don't fit their columns, with the types that their values have."""
    asked = asked_fields(target)
    if isinstance(asked, T.VariantType):
        return None
    text = F.col("value").cast("string")
    bad = decode_json(records, target, messages=False).filter(F.col("error_class") == WRONG_TYPE)
    taken = (
        bad.select("value", _parse(asked).alias(_PARSED), F.from_json(text, "map<string, string>").alias(_RAW))
        .select(_misfits(asked).alias("names"), F.from_json(text, "map<string, variant>").alias(_SEEN))
        .select(F.explode("names").alias("name"), _SEEN)
        .groupBy("name")
        .agg(F.schema_of_variant_agg(F.try_element_at(F.col(_SEEN), F.col("name"))).alias("observed"))
    )
    found = {row["name"]: row["observed"] for row in taken.collect()}
    kinds = {name: _column_type(_observed_type(observed), (), ()) for name, observed in sorted(found.items())}
    fields = [T.StructField(name, kind) for name, kind in kinds.items() if kind is not None]
    return T.StructType(fields) if fields else None


def with_times(records: DataFrame, seen: T.StructType, target: Target) -> T.StructType:
    """Return what was seen, text that is a date or time in every record as that type.

    Dates are ``2026-01-02``; times have a ``T`` or blank between date and time and at most six digits of a second,
    since columns hold no more; with ``Z`` or an offset they are ``timestamp``, without ``timestamp_ntz``.

    Args:
        records: The records; read again if there is text in new fields.
        seen: Fields and types; those within lists and maps are left as they are.
        target: Fields that feed its columns are left as they are.
    """
    paths = list(_texts(seen, (), _fed(target.columns, target, "")))
    if not paths:
        return seen
    value = _object(F.col("value").cast("string"))
    aggregates = []
    for index, path in enumerate(paths):
        text = F.try_variant_get(F.col(_VARIANT), variant_path(*path), "string")
        aggregates.append(F.count(text).alias(f"n{index}"))
        for name, (pattern, kind) in _TIMES.items():
            good = F.rlike(text, F.lit(pattern)) & text.try_cast(kind).isNotNull()
            aggregates.append(F.count_if(good).alias(f"{name}{index}"))
    counted = records.select(value.alias(_VARIANT)).agg(*aggregates).collect()[0]
    times: dict[tuple[str, ...], T.DataType] = {}
    for index, path in enumerate(paths):
        for name, (_, kind) in _TIMES.items():
            if counted[f"n{index}"] and counted[f"{name}{index}"] == counted[f"n{index}"]:
                times[path] = kind
    return _replaced(seen, (), times)


_DAY = r"\d{4}-\d\d-\d\d"
_CLOCK = r"[T ]\d\d:\d\d:\d\d(\.\d{1,6})?"
_TIMES: Mapping[str, tuple[str, T.DataType]] = {
    "date": (f"^{_DAY}$", T.DateType()),
    "local": (f"^{_DAY}{_CLOCK}$", T.TimestampNTZType()),
    "time": (f"^{_DAY}{_CLOCK}(Z|[+-]\\d\\d:?\\d\\d)$", T.TimestampType()),
}


def _texts(seen: T.StructType, path: tuple[str, ...], known: Collection[str]) -> Iterator[tuple[str, ...]]:
    for field in seen:
        if isinstance(field.dataType, T.StructType):
            yield from _texts(field.dataType, (*path, field.name), known)
        elif isinstance(field.dataType, T.StringType) and (path or (field.name,))[0] not in known:
            yield (*path, field.name)


def _replaced(seen: T.StructType, path: tuple[str, ...], kinds: Mapping[tuple[str, ...], T.DataType]) -> T.StructType:
    fields = []
    for field in seen:
        here = (*path, field.name)
        kind = kinds.get(here, field.dataType)
        fields.append(
            T.StructField(field.name, _replaced(kind, here, kinds) if isinstance(kind, T.StructType) else kind)
        )
    return T.StructType(fields)
