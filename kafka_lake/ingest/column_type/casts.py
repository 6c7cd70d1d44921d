"""Which types a column may change into, and which of its values would be lost by that, as Spark's SQL. Pure."""

from dataclasses import dataclass

from pyspark.sql import types as T

_WHOLE = (T.IntegerType, T.LongType)
_REALS = (T.FloatType, T.DoubleType)
_NUMBERS = (*_WHOLE, *_REALS, T.DecimalType)
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
_NESTED = (T.StructType, T.ArrayType, T.MapType)
_NUMBER = r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)"
_SURE_DIGITS = {T.FloatType: 6, T.DoubleType: 15}
"""So many decimal digits are never rounded."""
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
_TEXTS = {
    **dict.fromkeys(_WHOLE, "[+-]?[0-9]+"),
    **dict.fromkeys(_REALS, f"{_NUMBER}([eE][+-]?[0-9]+)?"),
    T.BooleanType: "true|false",
    T.DateType: "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    T.TimestampType: f"{_TIME}([Zz]|[+-][0-9]{{2}}:?[0-9]{{2}})?",
    T.TimestampNTZType: _TIME,
}
"""Text of which Spark makes the very value that it says."""


@dataclass(frozen=True)
class Cast:
    """How the values of a column become those of another type.

    Args:
        made: The new value; null where there is none.
        is_lost: True for a value that the new type doesn't hold unchanged, else false.
    """

    made: str
    is_lost: str


def cast_of(value: str, have: T.DataType, want: T.DataType) -> Cast | None:
    """Return how a column's values change their type; None if no plain cast does it.

    Args:
        value: The column, in Spark's SQL.
        have: Its type.
        want: Another one.

    >>> cast_of("`a`", T.LongType(), T.DoubleType()).made
    'try_cast(`a` AS double)'
    >>> cast_of("`a`", T.LongType(), T.TimestampType()) is None
    True
    """
    if isinstance(want, T.StringType) and isinstance(have, _NESTED):
        return Cast(f"to_json({value})", "false")
    made = f"try_cast({value} AS {want.simpleString()})"
    if isinstance(have, T.StringType):
        stays = _text_stays(value, made, want)
    elif _go_together(have, want):
        stays = f"try_cast({made} AS {have.simpleString()}) <=> {value}"
    else:
        return None
    return None if stays is None else Cast(made, f"({value} IS NOT NULL AND NOT coalesce({stays}, false))")


def _go_together(have: T.DataType, want: T.DataType) -> bool:
    """Return whether there is a plain cast from a type that isn't text; whether it loses anything, the values tell."""
    if isinstance(have, T.ArrayType) and isinstance(want, T.ArrayType):
        return isinstance(have.elementType, _NUMBERS) and isinstance(want.elementType, _NUMBERS)
    if isinstance(want, T.StringType):
        return isinstance(have, (*_NUMBERS, *_TIMES, T.BooleanType))
    families = (_NUMBERS, _TIMES)
    return any(isinstance(have, family) and isinstance(want, family) for family in families)


def _text_stays(value: str, made: str, want: T.DataType) -> str | None:
    """Return when text is the same as the value that is made of it; None if there is no plain cast."""
    if isinstance(want, T.DecimalType):
        text = f"[+-]?[0-9]*([.][0-9]{{0,{want.scale}}}0*)?"
    elif (text := _TEXTS.get(type(want), "")) == "":
        return None
    stays = f"{made} IS NOT NULL AND {value} RLIKE '^({text})$'"
    if isinstance(want, _REALS):
        digits = f"length(regexp_replace({value}, '[^0-9]', '')) <= {_SURE_DIGITS[type(want)]}"
        stays += f" AND abs({made}) < double('Infinity') AND ({digits} OR try_cast({made} AS string) = {value})"
    return stays
