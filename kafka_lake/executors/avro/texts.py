"""Bytes and text, and the logical types that are text: UUIDs, and the days and times that Debezium writes as text."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.avro.reader import Reader
from kafka_lake.executors.avro.scan import Places, Rows, Scan, span
from kafka_lake.executors.json.arrays import PLAIN_DATE, PLAIN_TIMES, as_times

ZONED_TIMESTAMP, ISO_TIMESTAMP = "io.debezium.time.ZonedTimestamp", "io.debezium.time.IsoTimestamp"
ISO_DATE, ISO_TIME = "io.debezium.time.IsoDate", "io.debezium.time.IsoTime"
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
_NO_YEAR = "0000"


class Bytes(Reader):
    """Reads bytes."""

    type = pa.binary()
    primitive: str | None = "bytes"

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        begin, length, at = scan.spans(at, row)
        return scan.binary(begin, length), at

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return where the values end."""
        return scan.spans(at, row)[2]

    def walk(self, content: bytes, at: int) -> int:
        """Return where a value ends."""
        return span(content, at)[1]


class Strings(Bytes):
    """Reads text; what isn't UTF-8 is malformed."""

    type = pa.string()
    primitive: str | None = "string"

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        begin, length, at = scan.spans(at, row)
        return valid_text(scan, scan.binary(begin, length, pa.string()), row), at


class Uuids(Strings):
    """Reads UUIDs that are text, in lower case; other text stays as it is."""

    primitive = None

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        found, at = super().read(scan, at, row)
        lower = pc.ascii_lower(found)
        if lower.equals(found):
            return found, at
        # RE2's $ stands at the very end alone.
        return pc.if_else(pc.match_substring_regex(found, _UUID), lower, found), at


class IsoTexts(Strings):
    """Reads a day or time that is text; what isn't one of the years 1 to 9999, `infinity` for instance, is malformed.

    Digits beyond microseconds are cut.

    Args:
        form: The regular expression of the whole text.
        plain: That of what `as_times` takes; None for text that stays text.
        zoned: Whether a Z at the end means something: a type that has no zone is written with it all the same.
    """

    primitive = None

    def __init__(self, type_: pa.DataType, form: str, plain: str | None, zoned: bool = False) -> None:
        self.type = type_
        self._form, self._plain, self._zoned = f"^{form}$", plain, zoned

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        texts, at = super().read(scan, at, row)
        good = pc.and_(pc.match_substring_regex(texts, self._form), pc.invert(pc.starts_with(texts, _NO_YEAR)))
        good = pc.fill_null(good, False).to_numpy(zero_copy_only=False)
        texts = pc.if_else(pa.array(good), texts, None)
        if not self._zoned:
            texts = pc.ascii_rtrim(texts, characters="Z")
        if self._plain is not None:
            texts = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
            texts, fit = as_times(texts, self._plain, self.type)
            good = good if fit is None else good & fit
        scan.fail(row, ~good)
        return texts, at


_ISO: Mapping[str, Reader] = MappingProxyType(
    {
        ZONED_TIMESTAMP: IsoTexts(
            pa.timestamp("us", "UTC"), f"{_DAY}T{_CLOCK}(Z|[+-][0-9]{{2}}:[0-9]{{2}})", PLAIN_TIMES["timestamp"], True
        ),
        ISO_TIMESTAMP: IsoTexts(pa.timestamp("us"), f"{_DAY}T{_CLOCK}Z?", PLAIN_TIMES["timestamp_ntz"]),
        ISO_DATE: IsoTexts(pa.date32(), f"{_DAY}Z?", PLAIN_DATE),
        ISO_TIME: IsoTexts(pa.string(), f"{_CLOCK}Z?", None),
    }
)
ISO_TEXTS = tuple(_ISO)
"""Debezium's types that are text."""


def iso_text(name: str) -> Reader | None:
    """Return what reads text of a type of Debezium's; None for other types."""
    return _ISO.get(name)


def valid_text(scan: Scan, texts: pa.StringArray, row: Rows) -> pa.StringArray:
    """Return texts, null where they are not UTF-8, which is marked as malformed."""
    if not (np.frombuffer(texts.buffers()[2] or b"", np.uint8) & 0x80).any():
        return texts
    try:
        texts.validate(full=True)
        return texts
    except pa.ArrowInvalid:
        wrong = np.array([not _is_text(content) for content in texts.view(pa.binary()).to_pylist()])
    scan.fail(row, wrong)
    return pc.if_else(pa.array(wrong), pa.scalar(None, pa.binary()), texts.view(pa.binary())).view(pa.string())


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
