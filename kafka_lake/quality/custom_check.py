"""Custom checks: functions that get the rows of a commit and return results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kafka_lake.errors import ConfigurationError
from kafka_lake.formats.redaction import quoted
from kafka_lake.formats.task.error_classes import SAMPLE_CHARACTERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHOWN = 5


@dataclass(frozen=True)
class CheckResult:
    """Result of a custom check.

    Args:
        message: A message for users. It is shown as values of records are: not at all with ``samples: false``.
    """

    name: str
    passed: bool
    rows: int | None = None
    message: str = ""

    @property
    def is_plain(self) -> bool:
        """Return whether all fields have valid types, NumPy's included."""
        import numpy as np

        is_counted = self.rows is None or (isinstance(self.rows, int | np.integer) and not isinstance(self.rows, bool))
        texts = isinstance(self.name, str) and isinstance(self.message, str)
        return texts and is_counted and isinstance(self.passed, bool | np.bool_)

    @property
    def found(self) -> str:
        """Return rows and message as text."""
        rows = "" if self.rows is None else f"{self.rows} row{'' if self.rows == 1 else 's'}"
        return ", ".join(filter(None, (rows, self.message))) or "is not met"


@dataclass(frozen=True)
class Checked:
    """All results of a custom check for one commit."""

    results: tuple[CheckResult, ...]

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """Return the results that failed."""
        return tuple(result for result in self.results if not result.passed)

    @property
    def facts(self) -> Mapping[str, object]:
        """Return the metadata of the check."""
        counts = {"checks": len(self.results), "checks_failed": len(self.failures)}
        return counts | {f"failed: {failure.name}": failure.found for failure in self.failures}

    @property
    def description(self) -> str:
        """Return the first failures as text."""
        shown = [f"{failure.name}: {failure.found}" for failure in self.failures[:_SHOWN]]
        if (more := len(self.failures) - _SHOWN) > 0:
            shown.append(f"and {more} more")
        return f"{len(self.failures)} of {len(self.results)} checks fail: {'; '.join(shown)}"


def run_check(reference: str, rows: DataFrame, samples: bool, mask: tuple[str, ...]) -> Checked:
    """Call a function with the rows that a commit is about to publish."""
    try:
        returned = _function(reference)(rows)
        results = [returned] if isinstance(returned, CheckResult) else list(returned)
    except ConfigurationError:
        raise
    except Exception as error:
        from kafka_lake.error_classification import is_transient

        if is_transient(error):
            raise
        # The message of an exception may have values of rows in it.
        reason = f"{type(error).__name__}: {error}" if samples else type(error).__name__
        raise _cannot_be(reference, f"it raised {quoted(reason, True, mask)}") from error
    if not results or not all(isinstance(result, CheckResult) for result in results):
        raise _cannot_be(reference, "it must return one or more kafka_lake.CheckResult")
    if odd := next((number for number, result in enumerate(results, 1) if not result.is_plain), None):
        parts = "name and message as text, passed as True or False, and rows as a number or None"
        raise _cannot_be(reference, f"number {odd} of its results needs {parts}")
    return Checked(tuple(_showable(results, samples, mask)))


def _function(reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise _cannot_be(reference, f"it can't be imported ({error})") from error
    if not callable(function):
        raise _cannot_be(reference, f"{type(function).__name__} is not a function")
    return function


def _showable(results: Iterable[CheckResult], samples: bool, mask: tuple[str, ...]) -> Iterable[CheckResult]:
    for result in results:
        message = quoted(result.message[:SAMPLE_CHARACTERS], samples, mask) if samples else ""
        yield CheckResult(result.name, bool(result.passed), None if result.rows is None else int(result.rows), message)


def _cannot_be(reference: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"rules: check: {reference}: {why}.", "Nothing was published. Correct check: or its module."
    )
