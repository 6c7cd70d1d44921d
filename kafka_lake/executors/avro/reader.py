"""What readers of Avro types have in common."""

from abc import ABC, abstractmethod

import pyarrow as pa

from kafka_lake.executors.avro.scan import Places, Rows, Scan


class UnsupportedTypeError(ValueError):
    """A schema is invalid, or has a type that no column can hold; the text says where."""


class Reader(ABC):
    """Reads the values of one Avro type, at many places at once.

    Attributes:
        type: What the values become; fields have no metadata.
        takes_bytes: Whether every value takes at least one byte.
        size: The bytes of each value, if all take as many.
        primitive: The name of the Avro type, if it is a primitive one without a logical type.
    """

    type: pa.DataType
    takes_bytes: bool = True
    size: int | None = None
    primitive: str | None = None

    @property
    def described(self) -> pa.DataType:
        """The type, with the docs of fields as their comments."""
        return self.type

    @abstractmethod
    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values at these places, and where they end; mark what is malformed in the scan."""

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return where the values at these places end."""
        return self.read(scan, at, row)[1]

    @abstractmethod
    def walk(self, content: bytes, at: int) -> int:
        """Return where the value at a place ends.

        Raises:
            ValueError: If that is nowhere.
            IndexError: Likewise.
        """


class Sized(Reader):
    """Reads values that all take the same number of bytes."""

    size: int

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return where the values end."""
        return at + self.size

    def walk(self, content: bytes, at: int) -> int:
        """Return where a value ends."""
        return at + self.size


class Null(Sized):
    """Reads nulls, which take no bytes."""

    type = pa.null()
    takes_bytes = False
    size = 0
    primitive = "null"

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return nulls."""
        return pa.nulls(len(at)), at


NULL = Null()
