"""DuckDB's JSON functions over Arrow arrays: the JSON text of fields, elements and entries."""

import json
from collections.abc import Sequence
from threading import get_ident
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

REWRITTEN = r"[:,\[\s]-?([0-9.]+[eE]|0\.000)|\.[0-9]*[0-9]0[\s,\]}]|-0[\s,\]}]"
"""Numbers in JSON that DuckDB writes otherwise than they were: 1e3, small ones, 1.50, and -0."""
_ELEMENTS, _ENTRIES = '["JSON"]', '"MAP(VARCHAR, JSON)"'

_PAIRS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]))


class _Databases(dict[int, Any]):
    """The databases of this process by thread. They don't travel: a pickled copy is empty."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Databases, ()


class JsonTexts:
    """A DuckDB in memory, one for all decoders of a thread.

    Its parser is lenient, and writes numbers and texts anew: callers find what that changes.
    """

    _databases: ClassVar[_Databases] = _Databases()

    @property
    def begun(self) -> bool:
        """Whether the database is there: it takes 0.1 s, when it is first used."""
        return get_ident() in self._databases

    def valid(self, texts: pa.Array) -> np.ndarray:
        """Return which texts are JSON, or nearly."""
        return _flags(self._select("json_valid(v)", texts))

    def fields(self, texts: pa.Array, names: Sequence[str]) -> tuple[dict[str, pa.Array], pa.ListArray] | None:
        """Return the JSON text of fields, null where one is null or missing, and all names of each object."""
        groups = _distinct_in_any_case(names)
        shapes = [_literal(json.dumps(dict.fromkeys(group, "JSON"))) for group in groups]
        asked = ["json_keys(v)", *(f"json_transform(v, {shape})" for shape in shapes)]
        made = self._of_json(asked, texts)
        if made is None:
            return None
        keys, *structs = made
        found: dict[str, pa.Array] = {}
        for group, struct in zip(groups, structs, strict=True):
            found |= zip(group, struct.flatten(), strict=True)
        return found, keys

    def names(self, texts: pa.Array) -> pa.ListArray | None:
        """Return the names of each object; None if a text isn't JSON."""
        made = self._of_json(["json_keys(v)"], texts)
        return None if made is None else made[0]

    def transformed(self, texts: pa.Array, shape: Any) -> pa.StructArray | None:
        """Return objects as structs of a shape, see DuckDB's ``json_transform``; None if a text isn't JSON."""
        made = self._of_json([f"json_transform(v, {_literal(json.dumps(shape))})"], texts)
        return None if made is None else made[0]

    def elements(self, texts: pa.Array) -> pa.ListArray:
        """Return the JSON texts of arrays' elements."""
        return self._select(f"json_transform(v, {_literal(_ELEMENTS)})", texts)

    def entries(self, texts: pa.Array) -> pa.ListArray:
        """Return objects' names with their JSON texts, as lists of structs; null also where a name occurs twice."""
        return self._select(f"json_transform(v, {_literal(_ENTRIES)})", texts).cast(_PAIRS)

    def strings(self, texts: pa.Array) -> pa.Array:
        """Return the texts that JSON strings stand for."""
        return self._select("json_transform(v, '\"VARCHAR\"')", texts)

    def _of_json(self, asked: Sequence[str], texts: pa.Array) -> list[pa.Array] | None:
        try:
            return self._selected(asked, texts)
        except UnicodeDecodeError:
            # DuckDB's message quotes the JSON text, and may cut it within a character.
            return None
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "_duckdb":
                raise
            return None

    def _select(self, asked: str, texts: pa.Array) -> Any:
        return self._selected([asked], texts)[0]

    def _selected(self, asked: Sequence[str], texts: pa.Array) -> list[pa.Array]:
        columns = ", ".join(f"{text} AS c{number}" for number, text in enumerate(asked))
        database = self._databases.get(get_ident()) or self._databases.setdefault(get_ident(), _database())
        database.register("texts", pa.table({"v": texts}))
        try:
            made = database.sql(f"SELECT {columns} FROM texts").to_arrow_table()
        finally:
            database.unregister("texts")
        return [_one(column) for column in made.columns]


def _database() -> Any:
    # Not every task needs it, and the import takes 70 ms.
    import duckdb

    settings: dict[str, Any] = {
        "threads": 1,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "enable_external_access": False,
    }
    return duckdb.connect(":memory:", config=settings)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _flags(array: pa.Array) -> np.ndarray:
    found: np.ndarray = array.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _distinct_in_any_case(names: Sequence[str]) -> list[list[str]]:
    """Return names in groups within which no two differ in case alone: a struct of DuckDB can't have both."""
    groups: list[dict[str, str]] = []
    for name in names:
        lower = name.lower()
        group = next((group for group in groups if lower not in group), None)
        if group is None:
            groups.append(group := {})
        group[lower] = name
    return [list(group.values()) for group in groups]


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
