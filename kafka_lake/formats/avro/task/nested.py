"""Readers of records, unions, arrays and maps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.avro.task.readers import NULL, PRIMITIVES, Reader
from kafka_lake.formats.avro.task.scan import Places, Rows, Scan, spread

_SHORT = np.iinfo(np.uint16).max


@dataclass(frozen=True)
class Member:
    """A field of a record, or a branch of a union."""

    name: str
    reader: Reader
    doc: Any = None

    @property
    def described(self) -> pa.Field:
        """The field, with its doc as a comment."""
        comment = {"comment": self.doc} if isinstance(self.doc, str) and self.doc else None
        return pa.field(self.name, self.reader.described, metadata=comment)


def _struct_type(members: Sequence[Member]) -> pa.StructType:
    kept = [(member.name, member.reader.type) for member in members if not pa.types.is_null(member.reader.type)]
    return pa.struct(kept or [("_set", pa.bool_())])


class Record(Reader):
    """Reads records as structs; fields of type null are left out."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._kept = [not pa.types.is_null(member.reader.type) for member in members]
        self.type = _struct_type(members)
        sizes = [member.reader.size for member in members]
        self.size = None if None in sizes else sum(filter(None, sizes))
        self.takes_bytes = any(member.reader.takes_bytes for member in members)

    def at_root(self) -> "Record":
        """Return it as the reader of rows: a record without fields gives structs without fields."""
        if not any(self._kept):
            self.type = pa.struct([])
        return self

    @property
    def described(self) -> pa.DataType:
        """The type, with docs."""
        kept = [member.described for member, keep in zip(self._members, self._kept, strict=True) if keep]
        return pa.struct(kept) if kept else self.type

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        made = []
        for member, keep in zip(self._members, self._kept, strict=True):
            if keep:
                values, at = member.reader.read(scan, at, row)
                made.append(values)
            else:
                at = member.reader.skip(scan, at, row)
        if made:
            return pa.StructArray.from_arrays(made, fields=list(self.type)), at
        return pa.array([dict.fromkeys(self.type.names, True)] * len(at), self.type), at

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return where the values end."""
        if self.size is not None:
            return at + self.size
        for member in self._members:
            at = member.reader.skip(scan, at, row)
        return at


class Union(Reader):
    """Reads unions: of null and one type as that type, of several types as a struct with one field set.

    Args:
        names: Of the branches that aren't null.
    """

    def __init__(self, branches: Sequence[Reader], names: Sequence[str]) -> None:
        self._branches = branches
        types = [number for number, branch in enumerate(branches) if branch is not NULL]
        self._members = {number: Member(name, branches[number]) for number, name in zip(types, names, strict=True)}
        self._only = (types or [0])[0] if len(types) < 2 else None
        self.type = _struct_type([*self._members.values()]) if self._only is None else branches[self._only].type

    @property
    def described(self) -> pa.DataType:
        """The type, with docs."""
        if self._only is not None:
            return self._branches[self._only].described
        return pa.struct([member.described for member in self._members.values()])

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        which, at = self._which(scan, at, row)
        parts: list[tuple[pa.Array, np.ndarray]] = []
        for number, branch in enumerate(self._branches):
            chosen = np.flatnonzero(which == number)
            if len(chosen) == len(which):
                values, at = branch.read(scan, at, row)
            elif len(chosen):
                values, at[chosen] = branch.read(scan, at[chosen], row[chosen])
            else:
                values = pa.nulls(0, branch.type)
            parts.append((values, chosen))
        if self._only is not None:
            return spread(*parts[self._only], len(at)), at
        none = np.ones(len(at), dtype=bool)
        for number in self._members:
            none[parts[number][1]] = False
        made = [spread(*parts[number], len(at)) for number in self._members]
        mask = pa.array(none) if none.any() else None
        return pa.StructArray.from_arrays(made, fields=list(self.type), mask=mask), at

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return where the values end."""
        which, at = self._which(scan, at, row)
        for number in self._members:
            chosen = np.flatnonzero(which == number)
            if len(chosen):
                at[chosen] = self._branches[number].skip(scan, at[chosen], row[chosen])
        return at

    def _which(self, scan: Scan, at: Places, row: Rows) -> tuple[np.ndarray, Places]:
        """Return the branch number and the start of each value; the starts are a copy."""
        which, at = scan.ints(at, row)
        wrong = (which < 0) | (which >= len(self._branches))
        if wrong.any():
            scan.fail(row, wrong)
        return which, at


class _Blocks(Reader):
    """Reads the blocks of arrays and maps; ``item`` reads an element, or a key with its value."""

    def __init__(self, item: Reader) -> None:
        self._item = item

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        return self._items(scan, at, row)[2]

    def _items(self, scan: Scan, at: Places, row: Rows) -> tuple[np.ndarray, Places, Places]:
        """Return the number of elements of each value, the starts of the elements, and the ends of the values."""
        at = at.copy()
        owners: list[np.ndarray] = []
        places: list[Places] = []
        going, size = np.arange(len(at)), self._item.size
        while len(going):
            count, at[going] = self._counts(scan, at[going], row[going])
            going, count = going[count > 0], count[count > 0]
            if size is not None:
                owners.append(np.repeat(going, count))
                first = at[going] - size * (np.cumsum(count) - count)
                places.append(np.repeat(first, count) + size * np.arange(count.sum()))
                at[going] += size * count
                continue
            ahead, left = going, count
            while len(ahead):
                # One element of each value at a time.
                owners.append(ahead)
                places.append(at[ahead])
                at[ahead] = end = self._item.skip(scan, at[ahead], row[ahead])
                over = end > scan.ends[row[ahead]]
                if over.any():
                    scan.fail(row[ahead], over)
                more = (left > 1) & ~over
                ahead, left = ahead[more], left[more] - 1
        return *_in_order(owners, places, len(at)), at

    def _counts(self, scan: Scan, at: Places, row: Rows) -> tuple[np.ndarray, Places]:
        """Return the number of elements in the next block of each value, 0 if malformed, and their starts."""
        count, at = scan.longs(at, row)
        sized = np.flatnonzero(count < 0)
        if len(sized):
            # The size of the block follows; it isn't needed.
            count[sized] = -count[sized]
            at[sized] = scan.longs(at[sized], row[sized])[1]
        room = (scan.ends[row] - at) // (self._item.size or 1)
        wrong = (count < 0) | (count > np.maximum(room, 0))
        if wrong.any():
            scan.fail(row, wrong)
            count = np.where(wrong, 0, count)
        return count, at


def _in_order(owners: list[np.ndarray], places: list[Places], count: int) -> tuple[np.ndarray, Places]:
    """Return the number of elements of each value, and the places of all in the order of values and elements."""
    if not owners:
        return np.zeros(count, dtype=np.int64), np.array([], dtype=np.int64)
    owner, place = np.concatenate(owners), np.concatenate(places)
    if len(owners) > 1:
        # NumPy sorts 16-bit integers in linear time.
        short = owner.astype(np.uint16) if count <= _SHORT else owner
        place = place[np.argsort(short, kind="stable")]
    return np.bincount(owner, minlength=count), place


def _offsets(counts: np.ndarray) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())


class Array(_Blocks):
    """Reads arrays as lists."""

    def __init__(self, element: Reader) -> None:
        super().__init__(element)
        self.type = pa.list_(element.type)

    @property
    def described(self) -> pa.DataType:
        """The type, with docs."""
        return pa.list_(self._item.described)

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        counts, places, end = self._items(scan, at, row)
        items, _ = self._item.read(scan, places, np.repeat(row, counts))
        return pa.ListArray.from_arrays(_offsets(counts), items, self.type), end


class Map(_Blocks):
    """Reads maps. The last of equal keys counts. Values of type null become text that is null."""

    def __init__(self, value: Reader) -> None:
        super().__init__(Record([Member("key", PRIMITIVES["string"]()), Member("value", value)]))
        self._value, self._is_null = value, pa.types.is_null(value.type)
        self.type = pa.map_(pa.string(), pa.string() if self._is_null else value.type)

    @property
    def described(self) -> pa.DataType:
        """The type, with docs."""
        return pa.map_(pa.string(), self.type.item_type if self._is_null else self._value.described)

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        counts, places, end = self._items(scan, at, row)
        entries, _ = self._item.read(scan, places, np.repeat(row, counts))
        # Null keys aren't UTF-8; their values are malformed.
        keys = pc.fill_null(entries.field(0), "")
        values = pa.nulls(len(keys), pa.string()) if self._is_null else entries.field(1)
        keys, values, counts = _last_of_equal(keys, values, counts)
        return pa.MapArray.from_arrays(_offsets(counts), keys, values, self.type), end


def _last_of_equal(keys: pa.Array, values: pa.Array, counts: np.ndarray) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Return the entries of maps without those whose key occurs again later."""
    codes = keys.dictionary_encode()
    owner = np.repeat(np.arange(len(counts)), counts)
    both = owner * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    # The first one from the end.
    last = np.unique(both[::-1], return_index=True)[1]
    if len(last) == len(both):
        return keys, values, counts
    kept = np.sort(len(both) - 1 - last)
    at = pa.array(kept)
    return keys.take(at), values.take(at), np.bincount(owner[kept], minlength=len(counts))
