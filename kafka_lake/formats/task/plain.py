"""Values taken as they are, as text or bytes: one column, ``value``."""

from contextlib import suppress
from typing import Literal

import numpy as np
import pyarrow as pa

from kafka_lake.formats.task.decoded import Decoded, failed_at, small_enough
from kafka_lake.formats.task.decoders import ValueDecoder
from kafka_lake.formats.task.error_classes import NOT_TEXT

_SHOWN_BYTES = 8


class PlainDecoder(ValueDecoder):
    """Gives values as one column.

    Args:
        kind: Text, which must be UTF-8; or bytes.
    """

    def __init__(self, kind: Literal["string", "bytes"], max_bytes: int | None = None) -> None:
        self._kind, self._max_bytes = kind, max_bytes

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values."""
        errors: dict[int, tuple[str, str]] = {}
        places = small_enough(values, self._max_bytes, errors)
        column = values.take(pa.array(places)) if len(places) < len(values) else values
        if self._kind != "bytes":
            column, bad = _texts(column)
            errors |= {int(places[number]): reason for number, reason in bad.items()}
            places = np.delete(places, list(bad))
        made = pa.StructArray.from_arrays([column], names=["value"])
        return Decoded(made, places, *failed_at(errors, len(values)))


def _texts(column: pa.Array) -> tuple[pa.Array, dict[int, tuple[str, str]]]:
    """Return the values that are UTF-8, and why the others fail, by their numbers."""
    with suppress(pa.ArrowInvalid):
        return column.cast(pa.string()), {}
    texts: list[str] = []
    bad: dict[int, tuple[str, str]] = {}
    for number, value in enumerate(column.to_pylist()):
        try:
            texts.append(value.decode())
        except UnicodeDecodeError:
            message = f"The value is not UTF-8; it begins with 0x{value[:_SHOWN_BYTES].hex().upper()}."
            bad[number] = NOT_TEXT, message
    return pa.array(texts, pa.string()), bad
