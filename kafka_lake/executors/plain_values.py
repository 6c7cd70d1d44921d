"""Values taken as they are, as text, bytes, or the text of any JSON value: one column, ``value``."""

from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import numpy as np
import pyarrow as pa

from kafka_lake.executors.json.decoder import NOT_JSON, TOO_DEEP, Decoded, failed_at, small_enough
from kafka_lake.executors.json.text import NotJsonError, TooDeepError, parse, refuse_twice

NOT_TEXT = "not_text"
_SHOWN_BYTES = 8


class PlainValues:
    """Gives values as one column.

    Args:
        kind: Text, which must be UTF-8; bytes; or a variant, which is one JSON value as text, without a field twice.
        max_bytes: Longer values are ``too_large``; None for no limit.
    """

    def __init__(self, kind: Literal["string", "bytes", "variant"], max_bytes: int | None = None) -> None:
        self._kind, self._max_bytes = kind, max_bytes

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values."""
        errors: dict[int, tuple[str, str]] = {}
        places = small_enough(values, self._max_bytes, errors)
        column = values.take(pa.array(places)) if len(places) < len(values) else values
        if self._kind != "bytes":
            column, bad = _checked(column, _text if self._kind == "string" else _json)
            errors |= {int(places[number]): reason for number, reason in bad.items()}
            places = np.delete(places, list(bad))
        made = pa.StructArray.from_arrays([column], names=["value"])
        return Decoded(made, places, *failed_at(errors, len(values)))


def _checked(column: pa.Array, check: Callable[[bytes], str]) -> tuple[pa.Array, dict[int, tuple[str, str]]]:
    """Return the values that are text of a kind, and why the others are none, by their numbers."""
    if check is _text:
        with suppress(pa.ArrowInvalid):
            return column.cast(pa.string()), {}
    texts: list[str] = []
    bad: dict[int, tuple[str, str]] = {}
    for number, value in enumerate(column.to_pylist()):
        try:
            texts.append(check(value))
        except UnicodeDecodeError:
            said = f"The value is not UTF-8; it begins with 0x{value[:_SHOWN_BYTES].hex().upper()}."
            bad[number] = NOT_TEXT, said
        except NotJsonError as error:
            bad[number] = NOT_JSON, str(error)
        except TooDeepError as error:
            bad[number] = TOO_DEEP, str(error)
    return pa.array(texts, pa.string()), bad


def _text(value: bytes) -> str:
    return value.decode()


def _json(value: bytes) -> str:
    text = value.decode()
    refuse_twice(parse(value))
    return text
