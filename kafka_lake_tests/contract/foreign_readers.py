"""Reads an Iceberg table on local files by one reader; a program of its own, for the environment of `readers.lock`.

It gets reader, metadata file, table's folder and columns as JSON on standard input, and prints the rows as JSON.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def by_duckdb(asked: Mapping[str, Any]) -> Any:
    import duckdb

    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    for name in ("avro", "iceberg"):
        spec = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert spec is not None
        (folder,) = spec.submodule_search_locations or ()
        (file,) = Path(folder).glob("extensions/*/*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    return connection.sql(f"SELECT {asked['columns']} FROM iceberg_scan('{asked['metadata']}')").to_arrow_table()


def by_chdb(asked: Mapping[str, Any]) -> Any:
    import chdb

    metadata = asked["metadata"].removeprefix(f"{asked['location']}/")
    table = f"icebergLocal('{asked['location']}', SETTINGS iceberg_metadata_file_path = '{metadata}')"
    return chdb.query(f"SELECT {asked['columns']} FROM {table}", "ArrowTable")


def by_daft(asked: Mapping[str, Any]) -> Any:
    import daft
    from pyiceberg.table import StaticTable

    frame = daft.read_iceberg(StaticTable.from_metadata(asked["metadata"]))
    return frame.select(*asked["columns"].split(", ")).to_arrow()


READERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {"duckdb": by_duckdb, "chdb": by_chdb, "daft": by_daft}


def main() -> None:
    asked = json.load(sys.stdin)
    rows = READERS[asked["reader"]](asked).to_pylist()
    print(json.dumps([list(row.values()) for row in rows], default=str))


if __name__ == "__main__":
    main()
