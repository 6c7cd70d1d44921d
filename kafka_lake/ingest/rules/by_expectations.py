"""Suites of Great Expectations as rules: loaded and asked by Great Expectations itself, of rows that Spark reads.

Its context lives in memory, writes no folder, and sends nothing.
"""

import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from kafka_lake.ingest.rules.referenced import cannot_be, referenced
from kafka_lake.ingest.rules.suite import SHOWN_SAMPLES, Failure, Shown, SuiteFound

UNIT = "expectations"
_COLUMNS = ("column", "column_A", "column_B", "column_list", "column_set")


def ask_expectations(reference: str, rows: DataFrame, shown: Shown) -> SuiteFound:
    """Ask a suite of rows.

    Args:
        reference: A suite's JSON file, or ``module:suite``.
        rows: Those that it is asked of; each of its figures may read them again.
        shown: What may be shown of their values.

    Returns:
        What it found. An expectation that can't be asked, as about a column that isn't there, fails.

    Raises:
        ConfigurationError: If Great Expectations isn't installed, or there is no such suite.
    """
    if find_spec("great_expectations") is None:
        raise cannot_be("expectations", reference, "Great Expectations isn't installed", "great-expectations")
    import great_expectations as gx
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    in_memory = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False),
    )
    context = gx.get_context(mode="ephemeral", project_config=in_memory)
    # Kept in memory, a commit's rows could take all of it; each figure reads the columns that it needs.
    source = context.data_sources.add_spark("commit", persist=False)
    batch = (
        source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("rows").get_batch({"dataframe": rows})
    )
    suite = _suite(reference)
    if not suite.expectations:
        raise cannot_be("expectations", reference, "the suite has no expectation")
    told = batch.validate(
        suite,
        result_format={
            "result_format": "BASIC",
            "partial_unexpected_count": SHOWN_SAMPLES if shown.samples else 0,
        },
    )
    failures = tuple(_failure(each, rows, shown) for each in told.results if not each.success)
    return SuiteFound(UNIT, len(told.results), len(failures), failures)


def _suite(reference: str) -> Any:
    """Return the suite of a file or of a module."""
    import great_expectations as gx

    if not reference.endswith(".json"):
        suite = referenced("expectations", reference)
        if not isinstance(suite, gx.ExpectationSuite):
            raise cannot_be("expectations", reference, f"it is no ExpectationSuite but {type(suite).__name__}")
        return suite
    try:
        given = json.loads(Path(reference).read_text())
        return gx.ExpectationSuite(**given)
    except Exception as error:
        # Of many kinds, as its settings are wrong in many ways.
        raise cannot_be(
            "expectations", reference, f"it is no suite of Great Expectations ({_first_line(error)})"
        ) from error


def _failure(result: Any, rows: DataFrame, shown: Shown) -> Failure:
    given, found = result.expectation_config.kwargs, result.result or {}
    columns = tuple(_columns(given))
    values = found.get("partial_unexpected_list") or ([found["observed_value"]] if "observed_value" in found else [])
    return Failure(
        name=result.expectation_config.type,
        about=", ".join(columns),
        rows=found.get("unexpected_count"),
        samples=shown.of(values),
        why="" if found else _why(result.exception_info or {}, columns, rows, shown),
    )


def _columns(given: Mapping[str, Any]) -> Iterator[str]:
    for name in _COLUMNS:
        value = given.get(name)
        yield from [value] if isinstance(value, str) else value or ()


def _why(raised: Mapping[str, Any], columns: tuple[str, ...], rows: DataFrame, shown: Shown) -> str:
    """Return why an expectation couldn't be asked. What an exception says may have values of rows in it."""
    there = {name.lower() for name in rows.columns}
    if missing := [name for name in columns if not {name.lower(), name.lower().split(".")[0]} & there]:
        return f"the table has no column {', '.join(missing)}"
    infos = [raised] if "exception_message" in raised else list(raised.values())
    messages = shown.of(each["exception_message"] for each in infos if each.get("exception_message"))
    return f"it can't be asked{f' ({messages[0].splitlines()[0]})' if messages else ''}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
