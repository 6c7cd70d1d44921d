"""Records in the shape of their writer's schema become a table's columns, by name at every depth.

A value goes to the first of its columns that holds all values of its type; what fits no column fails its record.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.task.columns import Column, arrow_type
from kafka_lake.formats.task.decoded import ANOTHER_TYPE, MESSAGE, Decoded, Observed, failed_at
from kafka_lake.formats.task.error_classes import NULL_IN_REQUIRED_COLUMN, WRONG_TYPE

SHOWN = 80
"""Characters of a type's name that messages show."""
_WHOLE = {"byte": 3, "short": 5, "int": 10, "long": 19}
_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
    pa.null(): "void",
}
_SHOWN = {"byte": "tinyint", "short": "smallint", "long": "bigint"}

Errors = dict[int, tuple[str, str]]
"""Number of a record → error class and message."""
_Misfits = list[tuple[np.ndarray, str]]
"""Which values have a part that fits no column, and the message."""
_Project = Callable[[pa.Array], tuple[pa.Array, _Misfits]]


class Fit:
    """Projects records of one shape onto columns.

    Columns that records lack are null, fields that feed no column are left out. Several fields that feed a column must
    not have different values.

    Args:
        have: The type of the records: a struct of the types that columns have.
    """

    def __init__(self, have: pa.StructType, columns: Sequence[Column], label: str) -> None:
        self.have, self.columns, self.label = have, columns, label
        self._project = _of_struct(have, columns, "")

    def rows(self, records: pa.StructArray) -> tuple[pa.StructArray, Errors]:
        """Return a struct of the columns for each record, and by number the records that aren't rows."""
        made, misfits = self._project(records)
        said: dict[int, list[str]] = {}
        for where, message in misfits:
            for number in np.flatnonzero(where).tolist():
                said.setdefault(number, []).append(message)
        errors = {
            number: (WRONG_TYPE, f"Written with {self.label}. {' '.join(messages)} {ANOTHER_TYPE}"[:MESSAGE])
            for number, messages in said.items()
        }
        return made, {**null_required(made, self.columns), **errors}

    def decoded(
        self, records: pa.StructArray, places: np.ndarray, errors: Errors, count: int, seen: Observed
    ) -> Decoded:
        """Return the result of a decoder."""
        made, wrong = self.rows(records)
        if wrong:
            errors = errors | {int(places[number]): error for number, error in wrong.items()}
            good = np.ones(len(made), dtype=bool)
            good[list(wrong)] = False
            made, places = made.filter(pa.array(good)), places[good]
        return Decoded(made, places, *failed_at(errors, count), seen)


def null_required(rows: pa.StructArray, columns: Sequence[Column]) -> Errors:
    """Return the rows that have null in columns that must not be null, with the names of those columns."""
    missing: dict[int, list[str]] = {}
    for index, (name, _, _, required, _) in enumerate(columns):
        if required and (found := rows.field(index)).null_count:
            for number in np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False)).tolist():
                missing.setdefault(number, []).append(name)
    said = "Required, but null or missing: "
    return {n: (NULL_IN_REQUIRED_COLUMN, f"{said}{', '.join(names)}."[:MESSAGE]) for n, names in missing.items()}


def fits(have: pa.DataType, want: Any) -> bool:
    """Return whether every value of a type is one of a column's, unchanged: Iceberg's promotions, at every depth.

    >>> fits(pa.int32(), ("long",)), fits(pa.int64(), ("int",))
    (True, False)
    """
    if pa.types.is_struct(have) and want[0] == "struct":
        twins = {column[0].lower(): column[1] for column in want[1]}
        return all(fits(field.type, twins[field.name.lower()]) for field in have if field.name.lower() in twins)
    if pa.types.is_map(have) and want[0] == "map":
        return fits(have.key_type, _key(want)) and fits(have.item_type, want[1])
    if pa.types.is_list(have) and want[0] == "list":
        return fits(have.value_type, want[1])
    return _holds(have, want)


def short(kind: pa.DataType | tuple[Any, ...]) -> str:
    """Return the name of a type or kind as Spark has it, cut to `SHOWN` characters.

    >>> short(pa.struct([("a", pa.list_(pa.int64()))])), short(("map", ("decimal", 9, 2)))
    ('struct<a:array<bigint>>', 'map<string,decimal(9,2)>')
    """
    text = _text(kind)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _text(kind: Any) -> str:
    if isinstance(kind, pa.DataType):
        kind = _kind(kind)
    if kind[0] == "struct":
        return f"struct<{','.join(f'{column[0]}:{_text(column[1])}' for column in kind[1])}>"
    if kind[0] == "list":
        return f"array<{_text(kind[1])}>"
    if kind[0] == "map":
        return f"map<{_text(_key(kind))},{_text(kind[1])}>"
    return f"decimal({kind[1]},{kind[2]})" if kind[0] == "decimal" else _SHOWN.get(kind[0], kind[0])


def _kind(have: pa.DataType) -> tuple[Any, ...]:
    """Return the kind of an Arrow type; of a struct's fields the names and types alone."""
    if pa.types.is_struct(have):
        return "struct", [(field.name, field.type) for field in have]
    if pa.types.is_map(have):
        return "map", have.item_type, have.key_type
    if pa.types.is_list(have):
        return "list", have.value_type
    return ("decimal", have.precision, have.scale) if pa.types.is_decimal(have) else (_NAMES[have],)


def _key(kind: Sequence[Any]) -> Any:
    return kind[2] if len(kind) > 2 else ("string",)


def _holds(have: pa.DataType, want: Any) -> bool:
    if pa.types.is_null(have):
        return True
    kind = _kind(have)
    if kind[0] in _WHOLE and want[0] in _WHOLE:
        return _WHOLE[kind[0]] <= _WHOLE[want[0]]
    if kind[0] == want[0] == "decimal":
        return bool(kind[2] == want[2] and kind[1] <= want[1])
    return kind == tuple(want) or (kind[0], want[0]) == ("float", "double")


def _alike(have: pa.DataType, want: Any) -> bool:
    """Return whether a type and a kind differ at most within: both are structs, or lists, or maps."""
    return _holds(have, want) or (want[0] in ("struct", "list", "map") and _kind(have)[0] == want[0])


def _same(have: pa.DataType, want: Any) -> bool:
    """Return whether each value is what the column shall have, as it is."""
    if have != arrow_type(want):
        return False
    if want[0] == "struct":
        return all(
            [index for index, column in enumerate(want[1]) if field.name in column[2]] == [number]
            and _same(field.type, want[1][number][1])
            for number, field in enumerate(have)
        )
    if want[0] == "map":
        return _same(have.item_type, want[1])
    return _same(have.value_type, want[1]) if want[0] == "list" else _kind(have) == tuple(want)


def _of(have: pa.DataType, want: Any, path: str) -> _Project:
    """Return what projects values of a type onto a column of a kind that is alike."""
    if _same(have, want):
        return lambda values: (values, [])
    kind = arrow_type(want)
    if pa.types.is_null(have):
        return lambda values: (pa.nulls(len(values), kind), [])
    if want[0] == "struct":
        return _of_struct(have, want[1], f"{path}.")
    if want[0] == "list":
        return _of_items(have.value_type, want[1], f"{path}.element", kind)
    if want[0] == "map":
        return _of_items(have.item_type, want[1], f"{path}.value", kind)
    return lambda values: (values.cast(kind), [])


def _of_struct(have: pa.StructType, columns: Sequence[Column], prefix: str) -> _Project:
    if _same(have, ("struct", columns)):
        return lambda values: (values, [])
    kind = arrow_type(("struct", columns))
    steps = list(_steps(have, columns, prefix))

    def project(values: pa.StructArray) -> tuple[pa.StructArray, _Misfits]:
        fields = values.flatten()
        made: list[list[pa.Array]] = [[] for _ in columns]
        misfits: _Misfits = []
        for number, index, step in steps:
            if isinstance(step, str):
                misfits += _any(_valid(fields[number]), step)
            else:
                part, wrong = step(fields[number])
                made[index].append(part)
                misfits += wrong
        for parts, (name, _, sources, *_) in zip(made, columns, strict=True):
            if len(parts) > 1:
                fed = " and ".join(field.name for field in have if field.name in sources)
                misfits += _any(_differ(parts), f"Column {prefix}{name} got different values of {fed}.")
        whole = [_first(parts, field.type, len(values)) for parts, field in zip(made, kind, strict=True)]
        return _struct(whole, kind, values), misfits

    return project


def _steps(have: pa.StructType, columns: Sequence[Column], prefix: str) -> Iterator[tuple[int, int, _Project | str]]:
    """Give for each field that feeds columns its number, that of the column that takes it, and how; or why not."""
    for number, field in enumerate(have):
        fed = [index for index, column in enumerate(columns) if field.name in column[2]]
        takers = [i for i in fed if fits(field.type, columns[i][1])] + [
            i for i in fed if _alike(field.type, columns[i][1])
        ]
        if takers:
            name, kind = columns[takers[0]][:2]
            yield number, takers[0], _of(field.type, kind, f"{prefix}{name}")
        elif fed:
            name, shown = columns[fed[0]][0], columns[fed[0]][4]
            yield number, fed[0], f"Column {prefix}{name} ({shown}) got {short(field.type)}."


def _of_items(have: pa.DataType, want: Any, path: str, kind: pa.DataType) -> _Project:
    """Return what projects the elements of lists, or the values of maps."""
    said = f"Column {path} has an element that doesn't fit {short(want)}."
    inner = _of(have, want, path) if _alike(have, want) else None

    def project(values: pa.Array) -> tuple[pa.Array, _Misfits]:
        lengths, keys, items = _entries(values)
        if inner is None:
            made, wrong = pa.nulls(len(items), arrow_type(want)), _valid(items)
        else:
            made, misfits = inner(items)
            wrong = (
                np.logical_or.reduce([where for where, _ in misfits]) if misfits else np.zeros(len(items), dtype=bool)
            )
        owners = np.repeat(np.arange(len(values)), lengths)
        there = np.zeros(len(values), dtype=bool)
        there[owners[wrong]] = True
        return _nested(values, lengths, keys, items=made, kind=kind), _any(there, said)

    return project


def _entries(values: pa.Array) -> tuple[np.ndarray, pa.Array | None, pa.Array]:
    """Return how many elements each list or map has, the keys of maps, and the elements; those of nulls left out."""
    offsets = values.offsets.to_numpy()
    lengths = np.where(_valid(values), np.diff(offsets), 0)
    children = (values.keys, values.items) if pa.types.is_map(values.type) else (None, values.values)
    if lengths.sum() == offsets[-1] - offsets[0]:
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        keys, items = (None if child is None else child.slice(first, count) for child in children)
    else:
        ends = np.cumsum(lengths)
        at = pa.array(np.repeat(offsets[:-1] - (ends - lengths), lengths) + np.arange(ends[-1]))
        keys, items = (None if child is None else child.take(at) for child in children)
    return lengths, keys, items


def _nested(
    values: pa.Array, lengths: np.ndarray, keys: pa.Array | None, items: pa.Array, kind: pa.DataType
) -> pa.Array:
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    mask = values.is_null() if values.null_count else None
    if keys is None:
        return pa.ListArray.from_arrays(offsets, items, kind, mask=mask)
    return pa.MapArray.from_arrays(offsets, keys.cast(kind.key_type), items, kind, mask=mask)


def _struct(parts: Sequence[pa.Array], kind: pa.StructType, values: pa.Array) -> pa.StructArray:
    mask = values.is_null() if values.null_count else None
    if not parts:
        return pa.array([None if none else {} for none in values.is_null().to_pylist()], kind)
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)


def _first(parts: Sequence[pa.Array], kind: pa.DataType, count: int) -> pa.Array:
    if not parts:
        return pa.nulls(count, kind)
    return parts[0] if len(parts) == 1 else pc.coalesce(*parts)


def _differ(parts: Sequence[pa.Array]) -> np.ndarray:
    """Return where several parts have values that aren't the same."""
    found = np.zeros(len(parts[0]), dtype=bool)
    for number, part in enumerate(parts[1:], 1):
        before = _first(parts[:number], part.type, len(part))
        both = np.flatnonzero(_valid(before) & _valid(part))
        # As text, NaN equals NaN.
        pairs = (map(repr, values.take(pa.array(both)).to_pylist()) for values in (before, part))
        found[both] |= [one != other for one, other in zip(*pairs, strict=True)]
    return found


def _valid(values: pa.Array) -> np.ndarray:
    found: np.ndarray = values.is_valid().to_numpy(zero_copy_only=False)
    return found


def _any(where: np.ndarray, message: str) -> _Misfits:
    return [(where, message)] if where.any() else []
