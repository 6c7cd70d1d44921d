"""Records, unions, arrays and maps: values that hold others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.avro.reader import NULL, Reader
from kafka_lake.executors.avro.scan import Places, Rows, Scan, after_varint, integer, spread
from kafka_lake.executors.avro.texts import Strings

SET = "_set"
"""The only field of a struct for records without fields: true where there is one."""
_FEW = 24
"""So few arrays are read one after the other; more are read side by side, an element of each at a time."""
_SHORT = np.iinfo(np.uint16).max


@dataclass(frozen=True)
class Member:
    """A field of a record, or a branch of a union."""

    name: str
    reader: Reader
    doc: Any = None

    @property
    def described(self) -> pa.Field:
        """The field, its doc as the comment."""
        comment = {"comment": self.doc} if isinstance(self.doc, str) and self.doc else None
        return pa.field(self.name, self.reader.described, metadata=comment)


def _struct_type(members: Sequence[Member]) -> pa.StructType:
    kept = [(member.name, member.reader.type) for member in members if not pa.types.is_null(member.reader.type)]
    return pa.struct(kept or [(SET, pa.bool_())])


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
        """Return it as what reads rows: without fields it gives structs without fields there."""
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
                found, at = member.reader.read(scan, at, row)
                made.append(found)
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

    def walk(self, content: bytes, at: int) -> int:
        """Return where a value ends."""
        for member in self._members:
            at = member.reader.walk(content, at)
        return at


class _Branches(Reader):
    """Reads the number of a union's branch, and then the value."""

    def __init__(self, branches: Sequence[Reader]) -> None:
        self._branches = branches

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return where the values end."""
        which, at = self._which(scan, at, row)
        for number, branch in enumerate(self._branches):
            mine = np.flatnonzero(which == number)
            if len(mine) and branch is not NULL:
                at[mine] = branch.skip(scan, at[mine], row[mine])
        return at

    def walk(self, content: bytes, at: int) -> int:
        """Return where a value ends."""
        which, at = integer(content, at)
        if not 0 <= which < len(self._branches):
            raise ValueError("a type that the union doesn't have")
        return self._branches[which].walk(content, at)

    def _which(self, scan: Scan, at: Places, row: Rows) -> tuple[np.ndarray, Places]:
        """Return the number of each value's branch, and where the values begin, to be written on."""
        which, at = scan.ints(at, row)
        wrong = (which < 0) | (which >= len(self._branches))
        if wrong.any():
            scan.fail(row, wrong)
        return which, at

    def _parts(self, scan: Scan, at: Places, row: Rows) -> tuple[list[tuple[pa.Array, np.ndarray]], Places]:
        """Return for each branch its values, and which of all those are; and where values end."""
        which, at = self._which(scan, at, row)
        parts = []
        for number, branch in enumerate(self._branches):
            mine = np.flatnonzero(which == number)
            if len(mine) == len(which):
                found, at = branch.read(scan, at, row)
            elif len(mine):
                found, at[mine] = branch.read(scan, at[mine], row[mine])
            else:
                found = pa.nulls(0, branch.type)
            parts.append((found, mine))
        return parts, at


class Optional(_Branches):
    """Reads a union of one type, with null or without it, as that type."""

    def __init__(self, branches: Sequence[Reader]) -> None:
        super().__init__(branches)
        self._number = next((n for n, branch in enumerate(branches) if branch is not NULL), 0)
        self.type = branches[self._number].type

    @property
    def described(self) -> pa.DataType:
        """The type, with docs."""
        return self._branches[self._number].described

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        parts, end = self._parts(scan, at, row)
        return spread(*parts[self._number], len(at)), end


class Widened(_Branches):
    """Reads a union of int and long, or of float and double, as the wider of the two."""

    def __init__(self, branches: Sequence[Reader], type_: pa.DataType) -> None:
        super().__init__(branches)
        self.type = type_

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        parts, end = self._parts(scan, at, row)
        solid = [(found, mine) for found, mine in parts if not pa.types.is_null(found.type)]
        return pc.coalesce(*[spread(found.cast(self.type), mine, len(at)) for found, mine in solid]), end


class Several(_Branches):
    """Reads a union of several types as a struct with a field for each, one of which is set.

    Args:
        names: Of the branches that are not null, in their order.
    """

    def __init__(self, branches: Sequence[Reader], names: Sequence[str]) -> None:
        super().__init__(branches)
        self._solid = [number for number, branch in enumerate(branches) if branch is not NULL]
        self._members = [Member(name, branches[number]) for name, number in zip(names, self._solid, strict=True)]
        self.type = _struct_type(self._members)

    @property
    def described(self) -> pa.DataType:
        """The type, with docs."""
        return pa.struct([member.described for member in self._members])

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        parts, end = self._parts(scan, at, row)
        none = np.ones(len(at), dtype=bool)
        for number in self._solid:
            none[parts[number][1]] = False
        made = [spread(*parts[number], len(at)) for number in self._solid]
        mask = pa.array(none) if none.any() else None
        return pa.StructArray.from_arrays(made, fields=list(self.type), mask=mask), end


class _Blocks(Reader):
    """Reads the blocks of arrays and maps.

    Args:
        item: Reads an element, or a key and its value.
    """

    def __init__(self, item: Reader) -> None:
        self._item = item

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return where the values end."""
        return self._items(scan, at, row)[2]

    def walk(self, content: bytes, at: int) -> int:
        """Return where a value ends."""
        while True:
            count, at = integer(content, at)
            if not count:
                return at
            if count < 0:
                at, count = after_varint(content, at), -count
            for _ in range(count):
                end = self._item.walk(content, at)
                if end == at or end > len(content):
                    # A few bytes could claim billions of elements.
                    raise ValueError("more elements than there are bytes")
                at = end

    def _items(self, scan: Scan, at: Places, row: Rows) -> tuple[np.ndarray, Places, Places]:
        """Return how many elements each value has, where those begin, and where the values end."""
        at = at.copy()
        owners: list[np.ndarray] = []
        places: list[Places] = []
        going = np.arange(len(at))
        while len(going):
            count, at[going] = self._counts(scan, at[going], row[going])
            going, count = going[count > 0], count[count > 0]
            if self._item.size is not None:
                size = self._item.size
                owners.append(np.repeat(going, count))
                first = at[going] - size * (np.cumsum(count) - count)
                places.append(np.repeat(first, count) + size * np.arange(count.sum()))
                at[going] += size * count
            else:
                self._one_by_one(scan, at, row, going=going, count=count, owners=owners, places=places)
        return *_in_order(owners, places, len(at)), at

    def _counts(self, scan: Scan, at: Places, row: Rows) -> tuple[np.ndarray, Places]:
        """Return how many elements the next block of each value has, and where they begin; none if it is malformed."""
        count, at = scan.longs(at, row)
        sized = np.flatnonzero(count < 0)
        if len(sized):
            # The block's size follows, which only those need who skip it.
            count[sized] = -count[sized]
            at[sized] = scan.longs(at[sized], row[sized])[1]
        room = (scan.ends[row] - at) // (self._item.size or 1)
        wrong = (count < 0) | (count > np.maximum(room, 0))
        if wrong.any():
            scan.fail(row, wrong)
            count = np.where(wrong, 0, count)
        return count, at

    def _one_by_one(
        self,
        scan: Scan,
        at: Places,
        row: Rows,
        going: np.ndarray,
        count: np.ndarray,
        owners: list[np.ndarray],
        places: list[Places],
    ) -> None:
        """Move the cursors of values over a block's elements, noting whose each is and where it begins."""
        while len(going) >= _FEW:
            owners.append(going)
            places.append(at[going])
            end = self._item.skip(scan, at[going], row[going])
            at[going] = end
            over = end > scan.ends[row[going]]
            if over.any():
                scan.fail(row[going], over)
            count = count - 1
            more = (count > 0) & ~over
            going, count = going[more], count[more]
        for number, left in zip(going.tolist(), count.tolist(), strict=True):
            begins, at[number] = self._walked(scan, int(at[number]), int(row[number]), left)
            owners.append(np.full(len(begins), number))
            places.append(np.array(begins, dtype=np.int64))

    def _walked(self, scan: Scan, at: int, row: int, count: int) -> tuple[list[int], int]:
        """Return where so many elements begin, one after the other, and where the last one ends."""
        begins: list[int] = []
        last = int(scan.ends[row])
        try:
            for _ in range(count):
                begins.append(at)
                at = self._item.walk(scan.content, at)
                if at > last:
                    raise ValueError("more elements than there are bytes")
        except (ValueError, IndexError):
            scan.bad[row] = True
            return begins, last
        return begins, at


def _in_order(owners: list[np.ndarray], places: list[Places], count: int) -> tuple[np.ndarray, Places]:
    """Return how many elements each value has, and the places of all, in the order of values and elements."""
    if not owners:
        return np.zeros(count, dtype=np.int64), np.array([], dtype=np.int64)
    whose, where = np.concatenate(owners), np.concatenate(places)
    if len(owners) > 1:
        # Numbers of 16 bits are sorted in linear time.
        short = whose.astype(np.uint16) if count <= _SHORT else whose
        where = where[np.argsort(short, kind="stable")]
    return np.bincount(whose, minlength=count), where


def _offsets(counts: np.ndarray) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())


class Array(_Blocks):
    """Reads arrays as lists; of nulls, their number counts: they become texts that are null."""

    def __init__(self, element: Reader) -> None:
        super().__init__(element)
        self.type = pa.list_(_solid(element.type))

    @property
    def described(self) -> pa.DataType:
        """The type, with docs."""
        return pa.list_(_solid(self._item.described))

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        counts, places, end = self._items(scan, at, row)
        items, _ = self._item.read(scan, places, np.repeat(row, counts))
        return pa.ListArray.from_arrays(_offsets(counts), _of_nulls(items), self.type), end


class _Entry(Reader):
    """Reads a key and its value."""

    def __init__(self, value: Reader) -> None:
        self._key, self.value = Strings(), value

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return keys and values as structs."""
        keys, at = self._key.read(scan, at, row)
        values, at = self.value.read(scan, at, row)
        return pa.StructArray.from_arrays([keys, values], ["key", "value"]), at

    def skip(self, scan: Scan, at: Places, row: Rows) -> Places:
        """Return where the values end."""
        return self.value.skip(scan, self._key.skip(scan, at, row), row)

    def walk(self, content: bytes, at: int) -> int:
        """Return where a value ends."""
        return self.value.walk(content, self._key.walk(content, at))


class Map(_Blocks):
    """Reads maps; of a key that is there twice, the last counts."""

    def __init__(self, value: Reader) -> None:
        self._entry = _Entry(value)
        super().__init__(self._entry)
        self.type = pa.map_(pa.string(), _solid(value.type))

    @property
    def described(self) -> pa.DataType:
        """The type, with docs."""
        return pa.map_(pa.string(), _solid(self._entry.value.described))

    def read(self, scan: Scan, at: Places, row: Rows) -> tuple[pa.Array, Places]:
        """Return the values."""
        counts, places, end = self._items(scan, at, row)
        entries, _ = self._item.read(scan, places, np.repeat(row, counts))
        # Only keys that are no text are null; their values are malformed.
        keys = pc.fill_null(entries.field(0), "")
        keys, values, counts = _last_of_equal(keys, entries.field(1), counts)
        return pa.MapArray.from_arrays(_offsets(counts), keys, _of_nulls(values), self.type), end


def _last_of_equal(keys: pa.Array, values: pa.Array, counts: np.ndarray) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Return the entries of maps without those whose key comes again."""
    codes = keys.dictionary_encode()
    whose = np.repeat(np.arange(len(counts)), counts)
    both = whose * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    # The first of equal ones from the end.
    last = np.unique(both[::-1], return_index=True)[1]
    if len(last) == len(both):
        return keys, values, counts
    kept = np.sort(len(both) - 1 - last)
    at = pa.array(kept)
    return keys.take(at), values.take(at), np.bincount(whose[kept], minlength=len(counts))


def _solid(kind: pa.DataType) -> pa.DataType:
    """Return the type of elements and of values of maps: their number counts, even if each is null."""
    return pa.string() if pa.types.is_null(kind) else kind


def _of_nulls(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()) if pa.types.is_null(values.type) else values
