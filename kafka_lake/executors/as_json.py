"""Values of binary formats as JSON text, for types that no column has."""

import json
import struct
from typing import Any

_DIGITS_OF_SINGLE = range(6, 10)
_SINGLE = "<f"


def text_of(value: Any) -> str:
    """Return a value's JSON, without spaces.

    Raises:
        ValueError: If a number in it is not finite.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def number_of(value: float, single: bool) -> float | str:
    """Return a float or double as JSON has it: with as few digits as tell it, or as text if it isn't finite.

    >>> number_of(struct.unpack("<f", struct.pack("<f", 0.1))[0], True), number_of(float("-inf"), False)
    (0.1, '-Infinity')
    """
    if value - value != 0:
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    if not single:
        return value
    written = struct.pack(_SINGLE, value)
    shorter = (float(f"{value:.{digits}g}") for digits in _DIGITS_OF_SINGLE)
    return next((short for short in shorter if _is_single(short) and struct.pack(_SINGLE, short) == written), value)


def _is_single(value: float) -> bool:
    try:
        struct.pack(_SINGLE, value)
    except OverflowError:
        return False
    return True
