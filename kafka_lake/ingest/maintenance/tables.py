"""What maintenance works with: the tables and an engine. It needs no broker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.maintenance.settings import Maintenance

Identifier = tuple[str, str]


class HasTables(Protocol):
    """Settings of tables that are kept fast together: of a topic, or of a derived table."""

    @property
    def identifier(self) -> Identifier:
        """Return namespace and name of the table that has the position."""

    @property
    def identifiers(self) -> Sequence[Identifier]:
        """Return all of the tables."""

    @property
    def maintenance(self) -> Maintenance:
        """Return how they are kept fast."""


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
