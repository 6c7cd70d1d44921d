"""What the fast path notes about the records of a batch while it reads them column by column."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

Path = tuple[str, ...]


@dataclass(frozen=True)
class Beside:
    """Values of a field that has no column.

    Args:
        path: The struct that the field is in, by columns' names.
        texts: The values as JSON, none of them null.
        at: The record of each value, by number.
    """

    path: Path
    name: str
    texts: pa.Array
    at: np.ndarray


@dataclass
class Marks:
    """Notes on the records of a batch.

    Args:
        count: How many records there are.

    Attributes:
        bad: The records that the fast path leaves to the strict one.
        written: The records in which a number became a part of a text, which must keep it as it was written.
        rounded: The path of a column, and the records of its numbers that were rounded.
        lenient: Whether a parser read the records that takes a comma before a closing bracket.
    """

    count: int
    bad: np.ndarray = field(init=False)
    written: np.ndarray = field(init=False)
    beside: list[Beside] = field(default_factory=list)
    rounded: list[tuple[Path, np.ndarray]] = field(default_factory=list)
    lenient: bool = False

    def __post_init__(self) -> None:
        self.bad, self.written = np.zeros(self.count, dtype=bool), np.zeros(self.count, dtype=bool)
        self._reason, self._reasons = np.zeros(self.count, dtype=np.int16), [""]

    def refuse(self, at: np.ndarray, why: str) -> None:
        """Leave records to the strict path; the first reason for each counts."""
        if not len(at):
            return
        if why not in self._reasons:
            self._reasons.append(why)
        self._reason[at[~self.bad[at]]] = self._reasons.index(why)
        self.bad[at] = True

    def reasons(self) -> dict[str, int]:
        """Return how many records were left to the strict path, by reason."""
        counts = np.bincount(self._reason[self.bad], minlength=len(self._reasons))
        return {why: int(count) for why, count in zip(self._reasons, counts, strict=True) if count}
