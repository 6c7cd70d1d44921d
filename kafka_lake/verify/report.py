"""The report of a verification: what was compared, and each problem with the offsets where it is."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from kafka_lake.common.offsets import place
from kafka_lake.common.text import counted

Kind = Literal[
    "missing", "doubled", "dead_letter_missing", "foreign_row", "value_differs", "key_differs", "not_newest", "versions"
]
_MEANINGS: dict[Kind, str] = {
    "missing": "records are neither rows nor dead letters",
    "doubled": "records occur more than once",
    "dead_letter_missing": "records can't be decoded and aren't dead letters",
    "foreign_row": "rows or dead letters have offsets without a record for this table",
    "value_differs": "rows or dead letters have other values than their records",
    "key_differs": "rows or dead letters have other keys than their records",
    "not_newest": "keys don't have the row of their newest change",
    "versions": "versions overlap the next version of their key",
}
_FIRST = 10


@dataclass
class Problem:
    """A kind of problem in a Kafka partition.

    Args:
        partition: None if the rows name no record of the topic.
        count: Number of records or rows.
        offsets: The first ten.
        columns: Names of columns whose values differ.
    """

    kind: Kind
    table: str
    topic: str
    partition: int | None
    count: int = 0
    offsets: list[int] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)

    @property
    def remedy(self) -> str:
        """Return what to do next."""
        if self.kind == "foreign_row":
            return (
                f"`kafka-lake history {self.topic}` lists who has written. Delete these rows with SQL. If the table's "
                "condition has changed, verify with --since the change."
            )
        if self.kind in ("not_newest", "versions"):
            return "Please report it. Drop the table and fill it again, or replay the topic from the offsets."
        first, last = min(self.offsets), max(self.offsets) + 1
        more = "" if self.count <= _FIRST else " and later offsets"
        span = f"--from {self.partition}:{first} --to {self.partition}:{last}"
        return f"`kafka-lake replay {self.topic} {span}`{more} reads the records again and replaces their rows."

    def __str__(self) -> str:
        """Return the problem as a line for people."""
        where = f"topic {self.topic}" if self.partition is None else place(self.topic, self.partition)
        offsets = f", offsets {', '.join(map(str, self.offsets))}" if self.offsets else ""
        more = ", …" if self.count > len(self.offsets) > 0 else ""
        columns = f", columns {', '.join(self.columns)}" if self.columns else ""
        return (
            f"{self.kind}: table {self.table}, {where}{offsets}{more}{columns}: {self.count:,} {_MEANINGS[self.kind]}. "
            f"{self.remedy}"
        )


@dataclass
class Report:
    """What a verification compared and found.

    Args:
        snapshot: Id of the verified snapshot of ``main``.
        ranges: First and exclusive last offset by topic and partition.
        counts: Records, rows, dead letters and so on.
        notes: What couldn't be compared.
    """

    table: str
    snapshot: int | None
    ranges: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(
        self,
        kind: Kind,
        topic: str,
        partition: int | None,
        offsets: Sequence[int] | np.ndarray,
        *,
        columns: Iterable[str] = (),
    ) -> None:
        """Add offsets to a problem."""
        key = (kind, topic, partition)
        problem = next((p for p in self.problems if (p.kind, p.topic, p.partition) == key), None)
        if problem is None:
            problem = Problem(kind, self.table, topic, partition)
            self.problems.append(problem)
        problem.count += len(offsets)
        problem.offsets = [*problem.offsets, *map(int, offsets[:_FIRST])][:_FIRST] if partition is not None else []
        problem.columns = sorted({*problem.columns, *columns})

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON can have it."""
        problems = [{**asdict(problem), "what_next": problem.remedy} for problem in self.problems]
        return {**asdict(self), "counts": dict(self.counts), "problems": problems, "verified": not self.problems}

    def lines(self) -> list[str]:
        """Return the report as lines for people."""
        shown = ", ".join(counted(number, what.replace("_", " "), "") for what, number in self.counts.items() if number)
        result = f"{len(self.problems)} problems" if self.problems else "verified"
        spans = [
            f"{place(topic, p)}: offsets {start} to {end - 1}"
            for topic, parts in self.ranges.items()
            for p, (start, end) in parts.items()
            if end > start
        ]
        head = f"{self.table}, snapshot {self.snapshot}: {result}; {shown}; {self.seconds:.1f} s."
        return [head, *spans, *(f"not compared: {text}" for text in self.notes), *map(str, self.problems)]
