"""From JSON values to values of columns that hold one: the rules of docs/formats.md, one by one."""

import base64
import re
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from math import isfinite
from typing import Any

import numpy as np

from kafka_lake.executors.json.instants import days_of
from kafka_lake.executors.json.misfit import MisfitError
from kafka_lake.executors.json.text import MINUS_ZERO, Real, refuse_twice
from kafka_lake.executors.json.types import TIME, as_text, is_double, kind_of, same_number

Convert = Callable[[Any], Any]
Nearest = Callable[[Any], tuple[float, bool]]
WHOLE_BITS = {"byte": 7, "short": 15, "int": 31, "long": 63}
"""Bits of the kinds of whole numbers, without the sign."""
_DOUBLE = 2**53
# Of text, what Arrow takes for a number.
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_ALL_DIGITS = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def since_epoch(value: int | Real, unit: Decimal) -> tuple[int, bool]:
    """Return a time that is a number since 1970 in whole microseconds, and whether there was more.

    Args:
        unit: How many microseconds its unit is.

    Raises:
        MisfitError: If it is beyond all times.
    """
    number = Decimal(value)
    if number.adjusted() > 30:
        raise MisfitError(kind_of(value))
    micros = _ALL_DIGITS.multiply(number, unit)
    whole = int(micros.to_integral_value(rounding="ROUND_FLOOR"))
    return whole, whole != micros


def _date(value: Any) -> int:
    # A day of UTC may say so, as in XML Schema and in Debezium's isostring: it is that very day.
    day = value.removesuffix("Z") if type(value) is str else ""
    if len(day) != 10 or (match := TIME.fullmatch(day)) is None:
        raise MisfitError(kind_of(value))
    return days_of(match["date"])


def whole_of(bits: int) -> Convert:
    """Return what takes whole numbers of so many bits, without the sign."""
    low, high = -(2**bits), 2**bits

    def convert(value: Any) -> int:
        if type(value) is int and low <= value < high:
            return value
        if type(value) is Real and value == MINUS_ZERO:
            return 0
        raise MisfitError(kind_of(value))

    return convert


def _double(value: Any) -> tuple[float, bool]:
    kind = type(value)
    if kind is int and -_DOUBLE <= value <= _DOUBLE:
        return float(value), True
    if kind is Real or kind is int:
        text = str(value)
        near = float(text)
        if isfinite(near):
            return near, is_double(text)
    raise MisfitError(kind_of(value))


def _float(value: Any) -> tuple[float, bool]:
    if type(value) in (int, Real):
        with np.errstate(over="ignore", under="ignore"):
            near = np.float32(str(value))
        if isfinite(near):
            return float(near), same_number(str(near), str(value))
    raise MisfitError(kind_of(value))


def decimal_of(precision: int, scale: int) -> Convert:
    """Return what takes numbers, also as text, that fit a precision and a scale."""
    last = Decimal((0, (1,), -scale))

    def convert(value: Any) -> Decimal:
        kind = type(value)
        if kind is int or kind is Real or (kind is str and _DECIMAL.fullmatch(value)):
            number = Decimal(value)
            if not number:
                return Decimal(0)
            _, digits, exponent = number.as_tuple()
            assert isinstance(exponent, int), "what isn't finite is no JSON"
            zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
            if exponent + zeros >= -scale and number.adjusted() < precision - scale:
                # Arrow counts zeros at the end too.
                return _ALL_DIGITS.quantize(number, last)
        raise MisfitError(kind_of(value))

    return convert


def _boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise MisfitError(kind_of(value))


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    refuse_twice(value)
    return as_text(value)


def _binary(value: Any) -> bytes:
    if type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            pass
    raise MisfitError(kind_of(value))


CONVERTERS: dict[str, Convert] = {
    "boolean": _boolean,
    "string": _string,
    "binary": _binary,
    "date": _date,
}
"""What takes values of the kinds that need nothing but their name."""
NEAREST: dict[str, Nearest] = {"float": _float, "double": _double}
"""What gives the number of a kind that is next to a value, and whether its shortest text is the value's number."""
