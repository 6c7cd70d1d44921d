"""Renames of columns as the settings say them: level by level, through others in between."""

from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.evolution.match import Column
from kafka_lake.lake.evolution.shapes import Place, fields_of, name_of, parent_of
from kafka_lake.lake.names import RESERVED, Names, column_name


class Renames:
    """The renames of one call of `evolve`, and which of them it has not come across.

    Args:
        renames: Path of a column as it was → its new name.
        current: The table's value columns; None if there is no table yet.

    Raises:
        ConfigurationError: If a new name is no name of a column.
    """

    def __init__(self, renames: Mapping[str, str], current: StructType | None) -> None:
        self.renames = renames
        self.current = current
        self.unmet = dict(renames)
        for path, name in renames.items():
            if name != column_name(name, () if "." in path else RESERVED):
                raise ConfigurationError(
                    f"renames: {path} can't become {name!r}, which is no name of a column.",
                    "Write the new name alone, without dots, and none of Iceberg's reserved ones.",
                )

    def at(self, place: Place) -> dict[str, str]:
        """Return the renames of one level: old name → the name that it comes to, through others in between."""
        once = {name_of(p): name for p, name in self.renames.items() if parent_of(p) in place.aliases}
        final = {}
        for old, name in once.items():
            seen = [old]
            while name in once and name not in seen:
                seen.append(name)
                name = once[name]
            if name in seen:
                raise ConfigurationError(
                    f"renames: {' → '.join([*seen, name])} leads back to where it came from.",
                    "Mend renames in the topic's YAML.",
                )
            final[old] = name
        return final

    def meet(self, renames: Mapping[str, str], columns: Sequence[Column], place: Place) -> None:
        """Note which renames of a level have led to a column."""
        names = {column.name for column in columns}
        for path in [p for p in self.unmet if parent_of(p) in place.aliases]:
            if renames[name_of(path)] in names:
                del self.unmet[path]

    def check(self) -> None:
        """Refuse renames of columns that the table has neither by the old nor by the new name."""
        if self.current is None or not self.unmet:
            return
        path, name = next(iter(self.unmet.items()))
        siblings = self._siblings(path)
        raise ConfigurationError(
            f"renames: there is no column {path}, nor one that is called {name} by now; "
            f"the columns there are {', '.join(siblings) or '(none)'}.",
            "Mend renames in the topic's YAML: the column's path as it was, and its new name.",
        )

    def _siblings(self, path: str) -> list[str]:
        """Return the names that the table has where a path leads; those at the top if it leads nowhere."""
        assert self.current is not None
        schema = Schema(*self.current.fields)
        kind = schema.find_type(parent_of(path)) if parent_of(path) in schema.column_names else self.current
        return [f.name for f in fields_of(kind)]


def refuse_taken(path: str, name: str, taken: Names, have: Iterable[NestedField]) -> None:
    """Refuse a rename to a name that is taken.

    Raises:
        ConfigurationError: If it is.
    """
    if name in taken:
        raise ConfigurationError(
            f"renames: {path} can't become {name}, that name is taken; "
            f"the columns there are {', '.join(f.name for f in have) or '(none)'}.",
            "Choose another name in the topic's YAML, or take the other column away first.",
        )


def old_names(renames: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the names that a column had before the renames that lead to its name."""
    return tuple(old for old, final in renames.items() if final == name)
