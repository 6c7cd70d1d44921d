"""The positions of many tables at a time."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from kafka_lake.common.offsets import Positions
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import read_positions

# Answers of a server are waited for side by side; a database's come faster than threads take turns.
_AT_ONCE = {"rest": 8, "glue": 8}


def all_positions(
    catalog: LakeCatalog, identifiers: Iterable[tuple[str, str]]
) -> Mapping[tuple[str, str], Positions | Exception]:
    """Return the positions of tables, by topic; none of one that isn't there, the error where there was one.

    Args:
        catalog: Where the tables are. A server is asked for up to eight at once.
        identifiers: Namespace and name of each.
    """
    asked = list(dict.fromkeys(identifiers))

    def positions(identifier: tuple[str, str]) -> Positions | Exception:
        try:
            table = catalog.table(identifier)
            return read_positions(table) if table else {}
        except Exception as error:
            return error

    at_once = min(_AT_ONCE.get(catalog.type, 1), len(asked))
    if at_once <= 1:
        return {each: positions(each) for each in asked}
    # Connected by one of them, it would be by each.
    first, *others = asked
    found = {first: positions(first)}
    with ThreadPoolExecutor(at_once) as pool:
        return found | dict(zip(others, pool.map(positions, others), strict=True))
