"""Values taken as they are, as text or bytes: one column, ``value``."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.json.decoder import Decoded, failed_at, too_large

NOT_TEXT = "not_text"
_SHOWN_BYTES = 8


class PlainValues:
    """Gives values as one column.

    Args:
        text: Whether the column is text, which must be UTF-8; else bytes.
        max_bytes: Longer values are ``too_large``; None for no limit.
    """

    def __init__(self, text: bool, max_bytes: int | None = None) -> None:
        self._text, self._max_bytes = text, max_bytes

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values.

        Args:
            values: Binary; nulls are tombstones.
        """
        errors = too_large(values, self._max_bytes)
        places = np.flatnonzero(pc.is_valid(values).to_numpy(zero_copy_only=False))
        places = np.setdiff1d(places, np.fromiter(errors, dtype=np.int64, count=len(errors)), assume_unique=True)
        column = values.take(pa.array(places)) if len(places) < len(values) else values
        if self._text:
            column, bad = _as_text(column)
            errors |= {int(places[number]): (NOT_TEXT, message) for number, message in bad.items()}
            places = np.delete(places, list(bad))
        made = pa.StructArray.from_arrays([column], names=["value"])
        return Decoded(made, places, *failed_at(errors, len(values)))


def _as_text(column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return the values that are UTF-8 as text, and why the others are none, by their numbers."""
    try:
        return column.cast(pa.string()), {}
    except pa.ArrowInvalid:
        texts: list[str] = []
        bad: dict[int, str] = {}
        for number, value in enumerate(column.to_pylist()):
            try:
                texts.append(value.decode())
            except UnicodeDecodeError:
                begins = value[:_SHOWN_BYTES].hex().upper()
                bad[number] = f"The value is not UTF-8; it begins with 0x{begins}."
        return pa.array(texts, pa.string()), bad
