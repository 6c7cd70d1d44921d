"""Names of columns and tables made from names of fields and topics, which allow more characters. Pure."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, MutableSet

LIMIT = 255
"""Characters of a column's name; bytes of a table's, which is a folder's as well."""
RESERVED = frozenset(
    {
        "_file",
        "_pos",
        "_deleted",
        "_partition",
        "_spec_id",
        "_row_id",
        "_last_updated_sequence_number",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
    }
)
"""Iceberg's metadata columns, which no engine tells apart from a table's own (spec: reserved field ids)."""


class Names(MutableSet[str]):
    """A set of names that differ in more than case."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._lower = {name.lower() for name in names}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._lower

    def __iter__(self) -> Iterator[str]:
        return iter(self._lower)

    def __len__(self) -> int:
        return len(self._lower)

    def add(self, value: str) -> None:
        """Add a name."""
        self._lower.add(value.lower())

    def discard(self, value: str) -> None:
        """Take a name out, if it is there."""
        self._lower.discard(value.lower())


_VERSIONED = re.compile(r".+__v\d+")
_LETTERS_AND_DIGITS = ("Lu", "Ll", "Lt", "Lm", "Lo", "Nd")


def column_name(source: str, taken: Iterable[str]) -> str:
    """Return the name of the column for a field.

    Characters other than letters, digits and underscores become underscores, and an underscore goes before a leading
    digit: these names are the same in Parquet files, where Iceberg encodes all others. Names of more than 255
    characters are cut and end in a hash of the whole name. A taken name gets ``__2``, or the next free number.

    >>> column_name("shop.id", ()), column_name("ID", {"id"}), column_name("_pos", RESERVED), column_name("2xx", ())
    ('shop_id', 'ID__2', '_pos__2', '_2xx')
    """
    plain = _plain(source)
    if len(plain) > LIMIT:
        digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        plain = f"{plain[: LIMIT - 9]}_{digest}"
    names = _names(taken)
    return plain if plain not in names else _numbered(plain, "__", names)


def is_plain(name: str) -> bool:
    """Return whether Parquet files of every writer have a column by its own name.

    >>> is_plain("größe_2"), is_plain("avatar-url"), is_plain("2xx")
    (True, False, False)
    """
    return name == _plain(name)


def name_problem(path: str, nested: bool = True) -> str | None:
    """Return why a setting that names a column can't mean a field's column; None if it can.

    >>> name_problem("user.id")
    >>> name_problem("user.id", nested=False)
    "'user.id' can't be a column, whose name has letters, digits and underscores. Write the field's column: user_id"
    >>> name_problem("user-id")
    "'user-id' can't be a column, whose name has letters, digits and underscores. Write the field's column: user_id"
    """
    column = ".".join(map(_plain, path.split(".") if nested else [path]))
    if column == path:
        return None
    what = f"{path!r} can't be a column, whose name has letters, digits and underscores"
    return f"{what}. Write the field's column: {column}"


def _plain(source: str) -> str:
    # Iceberg's AvroSchemaUtil.validAvroName, which knows no character beyond 16 bits.
    plain = "".join(c if unicodedata.category(c) in _LETTERS_AND_DIGITS and c <= "\uffff" else "_" for c in source)
    return plain if plain and unicodedata.category(plain[0]) != "Nd" else f"_{plain}"


def shortened(name: str, ending: str = "") -> str:
    """Return a table's name with an ending in at most 255 bytes: a longer name is cut, with a hash before the ending.

    >>> shortened("orders", "__dead_letters"), len(shortened("x" * 300)), shortened("x" * 300)[-10:]
    ('orders__dead_letters', 255, 'x_0d4e2ca9')
    """
    whole = f"{name}{ending}"
    if len(whole.encode()) <= LIMIT:
        return whole
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    kept = name.encode()[: LIMIT - len(ending.encode()) - 9].decode(errors="ignore")
    return f"{kept}_{digest}{ending}"


def versioned_name(column: str, taken: Iterable[str]) -> str:
    """Return the name of a column for values that another column can't take.

    >>> versioned_name("price", {"price"}), versioned_name("price", {"price", "price__v2"})
    ('price__v2', 'price__v3')
    """
    return _numbered(column, "__v", _names(taken))


def is_versioned(column: str) -> bool:
    """Return whether a name has the form of `versioned_name`."""
    return _VERSIONED.fullmatch(column) is not None


def _names(taken: Iterable[str]) -> Names:
    return taken if isinstance(taken, Names) else Names(taken)


def _numbered(name: str, mark: str, taken: Names) -> str:
    number = 2
    while (numbered := f"{name[: LIMIT - len(f'{mark}{number}')]}{mark}{number}") in taken:
        number += 1
    return numbered
