"""Checks of your own as rules: a function that gets the rows of a commit and says what it found."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pyspark.sql import DataFrame

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.executors.writing.report import SAMPLE_CHARACTERS
from kafka_lake.ingest.samples import quoted

_SHOWN = 5


@dataclass(frozen=True)
class CheckResult:
    """What a check of your own found.

    Args:
        name: What was checked, as ``amount is positive``.
        passed: Whether the rows meet it.
        rows: How many rows don't; None if they weren't counted.
        message: What else people should read. It is shown as values of records are: not at all with ``samples: false``.
    """

    name: str
    passed: bool
    rows: int | None = None
    message: str = ""

    @property
    def found(self) -> str:
        """Return rows and message, in words."""
        rows = "" if self.rows is None else f"{self.rows} row{'' if self.rows == 1 else 's'}"
        return ", ".join(filter(None, (rows, self.message))) or "is not met"


@dataclass(frozen=True)
class Checked:
    """What a check of your own found in a commit.

    Args:
        results: All of them, in their order.
    """

    results: tuple[CheckResult, ...]

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """Return those that the rows don't meet."""
        return tuple(result for result in self.results if not result.passed)

    @property
    def facts(self) -> Mapping[str, object]:
        """Return the metadata of the check: counts, and each failure."""
        counts = {"checks": len(self.results), "checks_failed": len(self.failures)}
        return counts | {f"failed: {failure.name}": failure.found for failure in self.failures}

    @property
    def said(self) -> str:
        """Return the first failures, in words."""
        shown = [f"{failure.name}: {failure.found}" for failure in self.failures[:_SHOWN]]
        if (more := len(self.failures) - _SHOWN) > 0:
            shown.append(f"and {more} more")
        return f"{len(self.failures)} of {len(self.results)} checks fail: {'; '.join(shown)}"


def run_check(reference: str, rows: DataFrame, samples: bool, mask: tuple[str, ...]) -> Checked:
    """Call a function with the rows of a commit.

    Args:
        reference: ``module:function``.
        rows: What the commit is about to publish.
        samples: Whether messages may be shown.
        mask: Regular expressions; ``***`` takes the place of what they find in messages.

    Raises:
        ConfigurationError: If there is no such function, if it raises, or if it returns something else. Nothing is
            published.
    """
    try:
        returned = _function(reference)(rows)
        results = [returned] if isinstance(returned, CheckResult) else list(returned)
    except ConfigurationError:
        raise
    except Exception as error:
        # The message of an exception may have values of rows in it.
        reason = f"{type(error).__name__}: {error}" if samples else type(error).__name__
        raise _cannot_be(reference, f"it raised {quoted(reason, True, mask)}") from error
    if not results or not all(isinstance(result, CheckResult) for result in results):
        raise _cannot_be(reference, "it has to return a kafka_lake.CheckResult, or several")
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
        yield CheckResult(result.name, result.passed, result.rows, message)


def _cannot_be(reference: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"rules: check: {reference}: {why}.", "Nothing was published. Correct check: or that module."
    )
