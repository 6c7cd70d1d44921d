"""Code examples that read a table with Spark, PyIceberg, DuckDB and Polars, without secrets."""

import json
import re
from collections.abc import Mapping

from kafka_lake.catalog.catalog_properties import is_secret
from kafka_lake.common.text import block, code


def how_to_read(
    catalog: str, identifier: tuple[str, str], properties: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return tool → code that shows the first rows of a table."""
    table = ".".join(identifier)
    known = {name: value for name, value in (properties or {}).items() if not is_secret(name, value)}
    given = f", **{json.dumps(known, ensure_ascii=False)}" if known else ""
    load = [
        "from pyiceberg.catalog import load_catalog",
        "",
        f'table = load_catalog("{catalog}"{given}).load_table({json.dumps(table, ensure_ascii=False)})',
    ]
    view = re.sub(r"\W", "_", identifier[1])
    return {
        "Spark": "\n".join(
            [
                "from pyspark.sql import SparkSession",
                "",
                "spark = SparkSession.builder.getOrCreate()",
                f"spark.table({json.dumps(_quoted(catalog, *identifier), ensure_ascii=False)}).show(10)",
            ]
        ),
        "PyIceberg": "\n".join([*load, "print(table.scan(limit=10).to_pandas())"]),
        "DuckDB through PyIceberg": "\n".join(
            [*load, f'print(table.scan().to_duckdb("{view}").sql("SELECT * FROM {view} LIMIT 10"))']
        ),
        "Polars": "\n".join(
            [
                "import polars as pl",
                *load,
                "print(pl.scan_iceberg(table, storage_options=table.io.properties).head(10).collect())",
            ]
        ),
    }


def how_to_read_page(catalog: str, identifier: tuple[str, str], properties: Mapping[str, str]) -> str:
    """Return the code for all tools in Markdown; secret properties are named without their values."""
    secrets = sorted(name for name, value in properties.items() if is_secret(name, value))
    # Spark's address always has a token.
    lines = ['In a shell, before: `eval "$(kafka-lake env --secrets)"`. It sets Spark\'s address and the catalog.']
    if secrets:
        lines.append(f"Only the environment has what is secret: {', '.join(map(code, secrets))}.")
    for tool, program in how_to_read(catalog, identifier, properties).items():
        lines += ["", f"**{tool}**", "", block(program, "python")]
    return "\n".join(lines)


def _quoted(*parts: str) -> str:
    return ".".join(part if re.fullmatch(r"[A-Za-z_]\w*", part, re.ASCII) else f"`{part}`" for part in parts)
