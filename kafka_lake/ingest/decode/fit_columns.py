"""From a record's fields to a table's columns, by name at every depth; what fits no column is named.

Fields arrive as Spark structs, by the schema that they were written with.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode.target import Target
from kafka_lake.spark.frames import any_of

SHOWN = 80
_WHOLE = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}


@dataclass(frozen=True)
class Misfit:
    """A reason for which a record fits no row.

    Args:
        there: True for records that have a value which fits none of the columns that it is meant for.
        message: What to say then.
    """

    there: Column
    message: Column


def project(value: Column, have: T.DataType, target: Target) -> tuple[Column, list[Misfit]]:
    """Return the columns that a record's fields make.

    Args:
        value: The record: a struct.
        have: Its type.
        target: What shall come of it. Columns that the record lacks are null, fields without a column are left out.

    Returns:
        A struct of exactly the target's columns, null where the value is; and what may be wrong with a record.
    """
    return _struct(value, have, want=target.columns, target=target, prefix="")


def reasons(misfits: Sequence[Misfit]) -> tuple[Column, Column]:
    """Return whether any of the misfits is there, and the messages of all that are, as one text."""
    if not misfits:
        return F.lit(False), F.lit(None).cast("string")
    there = [F.coalesce(m.there, F.lit(False)) for m in misfits]
    each = [F.when(holds, m.message) for holds, m in zip(there, misfits, strict=True)]
    return any_of(there), F.concat_ws(" ", *each)


def fits(have: T.DataType, want: T.DataType) -> bool:
    """Return whether every value of a type is one of another, unchanged: Iceberg's promotions, at every depth.

    >>> fits(T.IntegerType(), T.LongType()), fits(T.LongType(), T.IntegerType())
    (True, False)
    """
    if isinstance(have, T.StructType) and isinstance(want, T.StructType):
        twins = {f.name.lower(): f.dataType for f in want}
        return all(fits(f.dataType, twins[f.name.lower()]) for f in have if f.name.lower() in twins)
    if isinstance(have, T.ArrayType) and isinstance(want, T.ArrayType):
        return fits(have.elementType, want.elementType)
    if isinstance(have, T.MapType) and isinstance(want, T.MapType):
        return fits(have.keyType, want.keyType) and fits(have.valueType, want.valueType)
    return _holds(have, want)


def _holds(have: T.DataType, want: T.DataType) -> bool:
    if have.simpleString() == want.simpleString() or isinstance(have, T.NullType):
        return True
    if isinstance(have, T.DecimalType) and isinstance(want, T.DecimalType):
        exact: bool = have.scale == want.scale and have.precision <= want.precision
        return exact
    if type(have) in _WHOLE and type(want) in _WHOLE:
        wide: bool = _WHOLE[type(have)] <= _WHOLE[type(want)]
        return wide
    floats: bool = isinstance(have, T.FloatType) and isinstance(want, T.DoubleType)
    return floats


def _alike(have: T.DataType, want: T.DataType) -> bool:
    """Return whether two types differ at most within: both are structs, or lists, or maps."""
    return _holds(have, want) or (type(have) is type(want) and isinstance(have, T.StructType | T.ArrayType | T.MapType))


def _struct(
    value: Column, have: T.DataType, want: T.StructType, target: Target, prefix: str
) -> tuple[Column, list[Misfit]]:
    made: dict[str, list[Column]] = {field.name: [] for field in want}
    misfits: list[Misfit] = []
    for found, kind, columns in _claims(value, have, want=want, target=target, prefix=prefix):
        for column, part, wrong in _shared(found, kind, columns=columns, target=target, prefix=prefix):
            made[column].append(part)
            misfits += wrong
    fields = []
    for field in want:
        parts = made[field.name]
        whole = F.coalesce(*parts) if len(parts) > 1 else parts[0] if parts else F.lit(None).cast(field.dataType)
        fields.append(whole.alias(field.name))
    return F.when(value.isNotNull(), F.struct(*fields)), misfits


def _claims(
    value: Column, have: T.DataType, want: T.StructType, target: Target, prefix: str
) -> Iterator[tuple[Column, T.DataType, list[T.StructField]]]:
    """Give each field of a record that feeds columns, its type, and those columns."""
    names = [(name, field) for field in want for name in target.feeds(f"{prefix}{field.name}", field.name)]
    assert isinstance(have, T.StructType), "what is alike"
    # Spark finds no field whose name another one has, but for its case: by position it does.
    clash = len({each.name.lower() for each in have}) < len(have)
    if clash:
        value = value.cast(T.StructType([T.StructField(f"f{n}", f.dataType) for n, f in enumerate(have)]))
    for number, field in enumerate(have):
        if columns := [f for name, f in names if name == field.name]:
            yield value.getField(f"f{number}" if clash else field.name), field.dataType, list(dict.fromkeys(columns))


def _shared(
    value: Column, have: T.DataType, columns: Sequence[T.StructField], target: Target, prefix: str
) -> Iterator[tuple[str, Column, list[Misfit]]]:
    """Give each column its share of one field: the first that the field's value fits takes it."""
    taker = next((c for c in columns if fits(have, c.dataType)), None) or next(
        (c for c in columns if _alike(have, c.dataType)), None
    )
    if taker is not None:
        part, wrong = _value(value, have, want=taker.dataType, target=target, path=f"{prefix}{taker.name}")
        yield taker.name, part, wrong
        return
    first = columns[0]
    said = f"Column {prefix}{first.name} ({short(first.dataType)}) got {short(have)}."
    yield first.name, F.lit(None).cast(first.dataType), [Misfit(value.isNotNull(), F.lit(said))]


def _value(value: Column, have: T.DataType, want: T.DataType, target: Target, path: str) -> tuple[Column, list[Misfit]]:
    if isinstance(want, T.StructType):
        return _struct(value, have, want=want, target=target, prefix=f"{path}.")
    if isinstance(want, T.ArrayType):
        return _each(
            value,
            have.elementType,
            want=want.elementType,
            target=target,
            path=f"{path}.element",
            over=F.transform,
            values=lambda items: items,
        )
    if isinstance(want, T.MapType):

        def over(found: Column, change: Callable[[Column], Column]) -> Column:
            changed: Column = F.transform_values(found, lambda _, each: change(each))
            return changed

        made, wrong = _each(
            value,
            have.valueType,
            want=want.valueType,
            target=target,
            path=f"{path}.value",
            over=over,
            values=F.map_values,
        )
        return made.cast(want) if have != want else made, wrong
    return (value if have.simpleString() == want.simpleString() else value.cast(want)), []


def _each(
    items: Column,
    have: T.DataType,
    want: T.DataType,
    target: Target,
    path: str,
    over: Callable[[Column, Callable[[Column], Column]], Column],
    values: Callable[[Column], Column],
) -> tuple[Column, list[Misfit]]:
    """Project every element of a list or value of a map; the misfits of any are the misfits of the whole."""
    if have.simpleString() == want.simpleString():
        return items, []

    def one(element: Column) -> tuple[Column, list[Misfit]]:
        if not _alike(have, want):
            said = f"Column {path} ({short(want)}) got {short(have)}."
            return F.lit(None).cast(want), [Misfit(element.isNotNull(), F.lit(said))]
        return _value(element, have, want=want, target=target, path=path)

    made = over(items, lambda element: one(element)[0])

    def any_has(index: int) -> Column:
        return F.exists(values(items), lambda element: F.coalesce(one(element)[1][index].there, F.lit(False)))

    said = F.lit(f"Column {path} has an element that doesn't fit {short(want)}.")
    wrong = [Misfit(any_has(index), said) for index in range(len(one(F.lit(None).cast(have))[1]))]
    return made, wrong


def cut(text: Column) -> Column:
    """Return the beginning of a text, fit to be shown in a message."""
    longer = F.char_length(text) > SHOWN
    start = F.when(longer, F.concat(F.substring(text, 1, SHOWN), F.lit("…"))).otherwise(text)
    return F.regexp_replace(start, r"\p{Cntrl}", "\ufffd")


def short(kind: T.DataType, length: int = SHOWN) -> str:
    """Return a type's name, cut to so many characters."""
    text: str = kind.simpleString()
    return text if len(text) <= length else text[: length - 1] + "…"


def null_required(row: Column, columns: T.StructType) -> Column | None:
    """Return the names of the columns that must not be null and are, as text; empty if there are none of them.

    Args:
        row: A struct of the columns.
        columns: Those that aren't nullable count.

    Returns:
        None if every column may be null.
    """
    required = [f.name for f in columns if not f.nullable]
    if not required:
        return None
    return F.concat_ws(", ", *[F.when(row.getField(name).isNull(), F.lit(name)) for name in required])
