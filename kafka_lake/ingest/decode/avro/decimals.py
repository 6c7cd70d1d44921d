"""Decimals: as Spark has them up to 38 digits, as text beyond, by arithmetic on limbs of nine digits."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode.avro.value import Expression, Value, avro_field, unless_null

_MAX_DIGITS = 38
_LONG_DIGITS = 18
_LONG_BYTES = 8
_MAX_UNSCALED_BYTES = 128
_MAX_SCALE = 1024
_LIMB = 10**9


def decimal_value(avro: Any, node: Mapping[str, Any], most: float) -> Value | None:
    """Return a decimal, or None if it is declared as the specification doesn't allow."""
    precision, scale = node.get("precision"), node.get("scale", 0)
    if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= most) or not precision:
        return None
    if precision > _MAX_DIGITS:
        return Value(
            avro,
            T.StringType(),
            lambda raw: _with_point(_digits(raw), F.lit(scale)),
            lambda raw: [unless_null(F.octet_length(raw).between(1, _MAX_UNSCALED_BYTES))],
            loops=True,
        )
    kind = T.DecimalType(precision, scale)
    body = avro if isinstance(avro, dict) else {"type": avro}
    logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
    if precision > _LONG_DIGITS or body.get("size", _LONG_BYTES + 1) <= _LONG_BYTES:
        return Value({**body, **logical}, kind)
    # Spark takes the lowest 64 bits alone, whatever there is above them, of what it knows to fit them.
    return Value(
        {**body, **logical, "precision": _LONG_DIGITS + 1},
        kind,
        lambda raw: raw.try_cast(kind),
        lambda raw: [raw.isNull() | raw.try_cast(kind).isNotNull()],
    )


def big_decimal_record(name: str) -> Any:
    """Return how a big-decimal is encoded: its length, then the unscaled number as bytes, then the scale as int."""
    fields = [avro_field("length", "long"), avro_field("unscaled", "bytes"), avro_field("scale", "int")]
    return {"type": "record", "name": name, "fields": fields}


def big_decimal(raw: Column) -> Column:
    """Return a big-decimal as text, of its record as `big_decimal_record` declares it."""
    return scaled_decimal(raw.getField("unscaled"), raw.getField("scale"))


def is_big_decimal(raw: Column) -> list[Column]:
    """Return the condition that the record is a big-decimal that is whole and not too long."""
    length, scale = F.octet_length(raw.getField("unscaled")), raw.getField("scale").cast("bigint")
    zigzag = F.when(scale < 0, -2 * scale - 1).otherwise(2 * scale)
    framed = raw.getField("length") == _varint_size(2 * length) + length + _varint_size(zigzag)
    return [unless_null(framed & length.between(1, _MAX_UNSCALED_BYTES))]


def scaled_decimal(unscaled: Column, scale: Column) -> Column:
    """Return a decimal whose value tells its scale as text, all its digits."""
    return _with_point(_digits(unscaled), scale)


def is_number(unscaled: Column) -> Column:
    """Return the condition that bytes are a number that isn't too long."""
    return unless_null(F.octet_length(unscaled).between(1, _MAX_UNSCALED_BYTES))


def _varint_size(number: Column) -> Column:
    size = F.lit(5)
    for bits in (28, 21, 14, 7):
        size = F.when(number < 2**bits, F.lit(bits // 7)).otherwise(size)
    return size


def _let(value: Column, use: Expression) -> Column:
    """Return what `use` makes of a value that it names more than once, evaluated once."""
    return F.get(F.transform(F.array(value), use), F.lit(0))


def _digits(unscaled: Column) -> Column:
    """Return a number of two's complement as decimal text.

    Limbs of nine digits, the lowest first, take up 32 bits of the number after the other. What is negative counts as
    its complement, which is one less than its magnitude.
    """

    def text_of(limbs: Column) -> Column:
        nines = F.reverse(F.transform(limbs, lambda limb: F.lpad(limb.cast("string"), 9, "0")))
        stripped = F.ltrim(F.concat_ws("", nines), F.lit("0"))
        return _let(stripped, lambda digits: F.when(digits == "", "0").otherwise(digits))

    def of_hex(text: Column) -> Column:
        negative = F.substring(text, 1, 1) >= "8"
        of_64_bits = F.conv(F.lpad(text, 16, F.when(negative, "F").otherwise("0")), 16, -10)
        complement = F.translate(text, "0123456789ABCDEF", "FEDCBA9876543210")
        words = F.ceil(F.length(text) / 8).cast("int")
        padded = F.lpad(F.when(negative, complement).otherwise(text), words * 8, F.lit("0"))
        limbs = _let(padded, lambda whole: _limbs(whole, words))
        exact = _shifted(limbs, 1, F.when(negative, 1).otherwise(0).cast("bigint"))
        of_more = F.concat(F.when(negative, "-").otherwise(""), text_of(exact))
        return F.when(F.length(text) <= 16, of_64_bits).otherwise(of_more)

    return F.when(unscaled.isNotNull(), _let(F.hex(unscaled), of_hex))


def _limbs(text: Column, words: Column) -> Column:
    """Return the limbs of a number of so many words of eight hexadecimal digits."""
    zeros = F.array_repeat(F.lit(0).cast("bigint"), words + F.ceil(words / 8).cast("int"))

    def taken(limbs: Column, word: Column) -> Column:
        return _shifted(limbs, 2**32, F.conv(F.substr(text, word * 8 + 1, F.lit(8)), 16, 10).cast("bigint"))

    return F.aggregate(F.sequence(F.lit(0), words - 1), zeros, taken)


def _shifted(limbs: Column, factor: int, addend: Column) -> Column:
    start = F.struct(F.array().cast("array<bigint>").alias("limbs"), addend.alias("carry"))

    def step(state: Column, limb: Column) -> Column:
        total = limb * F.lit(factor) + state.getField("carry")
        done = F.concat(state.getField("limbs"), F.array(total % _LIMB))
        return F.struct(done.alias("limbs"), F.call_function("div", total, F.lit(_LIMB)).alias("carry"))

    return F.aggregate(limbs, start, step, lambda state: state.getField("limbs"))


def _with_point(number: Column, scale: Column) -> Column:
    def pointed(digits: Column) -> Column:
        magnitude = F.ltrim(digits, F.lit("-"))
        whole = F.greatest(F.length(magnitude) - scale, F.lit(1))
        padded = F.lpad(magnitude, whole + scale, F.lit("0"))
        sign = F.when(digits.startswith("-"), "-").otherwise("")
        plain = F.concat(sign, F.substr(padded, F.lit(1), whole), F.lit("."), F.right(padded, scale))
        scientific = F.concat(digits, F.lit("E"), (-scale.cast("bigint")).cast("string"))
        return F.when(scale == 0, digits).when(scale.between(1, _MAX_SCALE), plain).otherwise(scientific)

    return _let(number, pointed)
