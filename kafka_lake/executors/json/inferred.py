"""What Arrow's parser has inferred beside the fields that it was asked for."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def only_nothing(found: Any, asked: Any, path: str = "") -> frozenset[str] | None:
    """Return the paths of fields that are empty, if an inferred type adds nothing but nulls and those; else None."""
    if found == asked:
        return frozenset()
    if pa.types.is_list(asked) and pa.types.is_list(found):
        return only_nothing(found.value_type, asked.value_type, f"{path}.element")
    if not (pa.types.is_struct(asked) and pa.types.is_struct(found)):
        return None
    kinds = {field.name: field.type for field in asked}
    empty: set[str] = set()
    for field in found:
        below = f"{path}.{field.name}" if path else field.name
        if field.name not in kinds:
            if not _is_nothing(field.type):
                return None
            empty |= set() if pa.types.is_null(field.type) else {below}
            continue
        inner = only_nothing(field.type, kinds[field.name], below)
        if inner is None:
            return None
        empty |= inner
    return frozenset(empty)


def only_asked(table: pa.Table, asked: pa.Schema) -> pa.Table:
    """Return a table without the fields, at any depth, that a schema lacks."""
    if table.schema.equals(asked):
        return table
    columns = [table[field.name] for field in asked]
    return pa.table([c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, asked, strict=True)], asked)


def unknown_fields(found: Any, asked: Any) -> Iterator[str]:
    """Yield the names of fields that are more than nothing and that a type lacks."""
    if pa.types.is_list(asked) and pa.types.is_list(found):
        yield from unknown_fields(found.value_type, asked.value_type)
    elif pa.types.is_struct(asked) and pa.types.is_struct(found):
        kinds = {field.name: field.type for field in asked}
        for field in found:
            if field.name in kinds:
                yield from unknown_fields(field.type, kinds[field.name])
            elif not _is_nothing(field.type):
                yield field.name


def names_in_other_case(found: Any, asked: Any) -> Iterator[str]:
    """Yield the names of fields that are more than nothing and differ in case alone from those of a type."""
    if pa.types.is_list(asked) and pa.types.is_list(found):
        yield from names_in_other_case(found.value_type, asked.value_type)
    elif pa.types.is_struct(asked) and pa.types.is_struct(found):
        kinds = {field.name: field.type for field in asked}
        lower = {name.lower() for name in kinds}
        for field in found:
            if field.name in kinds:
                yield from names_in_other_case(field.type, kinds[field.name])
            elif field.name.lower() in lower and not _is_nothing(field.type):
                yield field.name


def values_aside(array: pa.Array, asked: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the paths of fields that a type lacks, and how many values each has that are not null.

    Args:
        array: Structs, or lists of them.
        asked: The type.
        path: Where they are.
    """
    if pa.types.is_list(asked) and pa.types.is_list(array.type):
        yield from values_aside(array.flatten(), asked.value_type, f"{path}.element")
    elif pa.types.is_struct(asked) and pa.types.is_struct(array.type):
        kinds = {field.name: field.type for field in asked}
        for field, inner in zip(array.type, array.flatten(), strict=True):
            below = f"{path}.{field.name}" if path else field.name
            if field.name in kinds:
                yield from values_aside(inner, kinds[field.name], below)
            elif count := len(inner) - inner.null_count:
                yield below, count


def _is_nothing(kind: Any) -> bool:
    if pa.types.is_list(kind):
        return _is_nothing(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_nothing(field.type) for field in kind)
    return bool(pa.types.is_null(kind))
