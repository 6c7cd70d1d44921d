"""What maintenance works with: the tables and an engine. It needs no broker."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka_lake.lake.catalog import LakeCatalog


@dataclass(frozen=True)
class Tables:
    """A catalog, and a Spark for what must be rewritten.

    Args:
        catalog: Where the tables are.
        spark: Returns the session; called only if something is rewritten.
        run_id: Of the run, for what it commits; empty if it has none.
    """

    catalog: LakeCatalog
    spark: Callable[[], Any]
    run_id: str = ""
