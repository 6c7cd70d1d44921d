"""A writer that is as fast as Iceberg: each commit appends a file that already exists, in Spark's JVM.

For tables of very many commits. What a commit of ours takes is measured by others, made in between.
"""

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from uuid import uuid4

from pyiceberg.table import Table


class FastWriter:
    """Appends the same file under other names, to an unpartitioned table of local files.

    Args:
        spark: A session in this process.
        catalog: Name of the catalog in Spark.
        table: Has one data file at least, which is copied.
    """

    def __init__(self, spark: Any, catalog: str, table: Table) -> None:
        """Load the table in the JVM."""
        self._jvm = spark._jvm
        util = self._jvm.org.apache.iceberg.spark.Spark3Util
        self._table = util.loadIcebergTable(spark._jsparkSession, ".".join((catalog, *table.name())))
        file = next(iter(table.scan().plan_files())).file
        self._bytes, self._rows = file.file_size_in_bytes, file.record_count
        self._folder = Path(unquote(urlparse(table.location()).path)) / "data"
        self._template = self._folder.parent / "template.parquet"
        shutil.copy(unquote(urlparse(file.file_path).path), self._template)

    @property
    def rows(self) -> int:
        """Return how many rows a commit has."""
        return int(self._rows)

    def commit(self, summary: dict[str, str]) -> None:
        """Append one file."""
        path = self._folder / f"{uuid4().hex}.parquet"
        shutil.copy(self._template, path)
        file = (
            self._jvm.org.apache.iceberg.DataFiles.builder(self._table.spec())
            .withPath(f"file://{path}")
            .withFormat("parquet")
            .withFileSizeInBytes(self._bytes)
            .withRecordCount(self._rows)
            .build()
        )
        append = self._table.newFastAppend().appendFile(file)
        for name, value in summary.items():
            append = append.set(name, value)
        append.commit()

    def refresh(self) -> None:
        """See what others have committed: else the next commit is tried twice."""
        self._table.refresh()
