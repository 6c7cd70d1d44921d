"""What is in a table, counted from its data files by DuckDB: not by the engine that wrote them."""

from dataclasses import dataclass

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from kafka_lake.catalog.positions import ancestors, head_of


@dataclass(frozen=True)
class Contents:
    """A table's rows, those of them that are there more than once, its data files, their bytes, and its commits."""

    rows: int
    duplicates: int
    files: int
    bytes: int
    commits: int


def contents(table: Table, identity: str) -> Contents:
    """Count what readers of a table see."""
    # Not above: what is measured imports this module and counts nothing.
    import duckdb
    from pyarrow import dataset

    files = [task.file for task in table.scan().plan_files()]
    commits = sum(1 for _ in ancestors(table, head_of(table)))
    if not files:
        return Contents(0, 0, 0, 0, commits)
    with duckdb.connect(config={"memory_limit": "2GB", "threads": 2}) as connection:
        paths = [file.file_path.removeprefix("file://").removeprefix("file:") for file in files]
        remote = [path.removeprefix("s3://") for path in paths if path.startswith("s3://")]
        if remote:
            assert isinstance(table.io, PyArrowFileIO)
            connection.register("data", dataset.dataset(remote, filesystem=table.io.fs_by_scheme("s3", "")))
        else:
            connection.from_parquet(paths).create_view("data")  # type: ignore[arg-type]
        counted = connection.execute(f"SELECT count(*), count(DISTINCT {identity}) FROM data").fetchone()
    assert counted is not None
    rows, distinct = counted
    return Contents(rows, rows - distinct, len(files), sum(f.file_size_in_bytes for f in files), commits)


BY_LETTER = 'partition::BIGINT << 48 | "offset"'
BY_OFFSET = "_kafka.partition::BIGINT << 48 | _kafka.offset"
BY_ORDER = "order_id"
