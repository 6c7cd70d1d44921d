"""Schemas of Pandera as rules: asked by Pandera itself, of rows that Spark reads."""

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from pyspark.sql import DataFrame

from kafka_lake.ingest.rules.referenced import cannot_be, environment_kept, referenced
from kafka_lake.ingest.rules.suite import Failure, Shown, SuiteFound

UNIT = "checks"
_STRICT = "COLUMN_NOT_IN_SCHEMA"
_OUTSIDE = re.compile(r"^column '(.*?)' not in DataFrameSchema")


def ask_schema(reference: str, rows: DataFrame, metadata_column: str | None, shown: Shown) -> SuiteFound:
    """Ask a schema of rows.

    Args:
        reference: ``module:schema``.
        rows: Those that it is asked of; each check reads them again.
        metadata_column: A column that a strict schema may leave out, since Pandera declares no structs.
        shown: What may be shown of what was found.

    Returns:
        What it found. Each column of the schema and each check of it as a whole counts as one check.

    Raises:
        ConfigurationError: If Pandera isn't installed, or there is no such schema.
    """
    if find_spec("pandera") is None:
        raise cannot_be("pandera", reference, "Pandera isn't installed", "pandera")
    schema = _schema(reference)
    asked = len(schema.columns) + len(schema.checks) + bool(schema.strict) + bool(schema.unique)
    if not asked:
        raise cannot_be("pandera", reference, "the schema has no column and no check")
    from pandera.config import ValidationDepth, config_context

    if schema.strict and metadata_column in rows.columns and metadata_column not in schema.columns:
        rows = rows.drop(metadata_column)
    # Pandera's environment variables could have it check nothing.
    with config_context(
        validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_AND_DATA, cache_dataframe=False
    ):
        try:
            told = schema.validate(rows, lazy=True).pandera.errors
        except Exception as error:
            # Spark's own, as of a value that isn't of the type that `coerce` asks for; it may have the value in it.
            why = "; ".join(["it can't be asked", *shown.of([str(error).partition(" SQLSTATE")[0]])])
            return SuiteFound(UNIT, asked, asked, (Failure(schema.name or reference, why=why),))
    found = dict.fromkeys(_failures(told, schema, shown))
    failed = len({part for part, _ in found})
    return SuiteFound(UNIT, max(asked, failed), failed, tuple(failure for _, failure in found))


def _schema(reference: str) -> Any:
    found = referenced("pandera", reference)
    with environment_kept():
        import pandera.pyspark as pa
    try:
        schema = found.to_schema() if isinstance(found, type) and hasattr(found, "to_schema") else found
    except Exception as error:
        # Of many kinds, as a schema may be wrong in many ways.
        raise cannot_be("pandera", reference, f"it is no schema ({next(iter(str(error).splitlines()), '')})") from error
    if not isinstance(schema, pa.DataFrameSchema):
        name = getattr(found, "__name__", type(found).__name__)
        raise cannot_be("pandera", reference, f"{name} is no DataFrameModel or DataFrameSchema of pandera.pyspark")
    return schema


def _failures(told: Mapping[str, Mapping[str, Any]], schema: Any, shown: Shown) -> Iterator[tuple[str, Failure]]:
    """Give what fails, and of which part of the schema. What an exception says may have values of rows in it."""
    for reasons in told.values():
        for reason, errors in reasons.items():
            for each in errors:
                name, column, said = (str(each[key] or "") for key in ("check", "column", "error"))
                if reason == _STRICT and (outside := _OUTSIDE.match(said)):
                    column = outside[1]
                about = "" if column == schema.name and column not in schema.columns else column
                why = ", ".join(shown.of([said])) if reason == "CHECK_ERROR" else ""
                yield about if about in schema.columns else name, Failure(name or reason.lower(), about, why=why)
