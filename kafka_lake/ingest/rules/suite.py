"""What a suite of Great Expectations, or a schema of Pandera, finds of a commit's rows. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kafka_lake.executors.writing.report import SAMPLE_CHARACTERS
from kafka_lake.ingest.samples import quoted

SHOWN_SAMPLES = 3
"""So many values of an expectation are shown, where any are."""
_SHOWN = 5


@dataclass(frozen=True)
class Shown:
    """What may be shown of values.

    Args:
        samples: Whether any is.
        mask: Regular expressions; ``***`` takes the place of what they find.
    """

    samples: bool = False
    mask: tuple[str, ...] = ()

    def of(self, values: Iterable[object]) -> tuple[str, ...]:
        """Return the first values as text, each once; none if nothing may be shown.

        >>> Shown(True, ("4111",)).of([4111, 2, 2, None]), Shown().of([2])
        (('***', '2', 'None'), ())
        """
        if not self.samples:
            return ()
        told = (quoted(str(value)[:SAMPLE_CHARACTERS], True, self.mask) for value in values)
        return tuple(dict.fromkeys(told))[:SHOWN_SAMPLES]


@dataclass(frozen=True)
class Failure:
    """An expectation, or a check of a schema, that the rows don't meet.

    Args:
        name: What it is called in the suite or schema.
        about: The columns that it is about, or the part of a table.
        rows: How many rows don't meet it; None if that isn't told.
        samples: Values of such rows, or what was found instead, as they may be shown.
        why: Why it can't be asked; empty if it was.
    """

    name: str
    about: str = ""
    rows: int | None = None
    samples: tuple[str, ...] = ()
    why: str = ""

    @property
    def title(self) -> str:
        """Return which it is."""
        return f"{self.name} ({self.about})" if self.about else self.name

    @property
    def found(self) -> str:
        """Return what was found, in words."""
        rows = "" if self.rows is None else f"{self.rows} rows"
        values = f"such as {', '.join(self.samples)}" if self.samples else ""
        return ", ".join(filter(None, (self.why, rows, values))) or "is not met"


@dataclass(frozen=True)
class SuiteFound:
    """What became of a suite or schema.

    Args:
        unit: What it consists of: ``expectations`` or ``checks``.
        asked: How many of them.
        failed: How many the rows don't meet.
        failures: What was found of those; several, where a column is one of them.
    """

    unit: str
    asked: int
    failed: int = 0
    failures: tuple[Failure, ...] = ()

    @property
    def facts(self) -> Mapping[str, object]:
        """Return what the check shows: how many there are, and each that fails."""
        told: dict[str, object] = {
            self.unit: self.asked,
            f"{self.unit}_passed": self.asked - self.failed,
            f"{self.unit}_failed": self.failed,
        }
        return told | {f"failed: {each.title}": each.found for each in self.failures}

    @property
    def said(self) -> str:
        """Return which ones fail, in words."""
        told = [f"{each.title}: {each.found}" for each in self.failures[:_SHOWN]]
        if (more := len(self.failures) - _SHOWN) > 0:
            told.append(f"and {more} more")
        return f"{self.failed} of {self.asked} {self.unit} fail: {'; '.join(told)}"
