"""What all have that stage a change of a table's files on a branch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka_lake.common.errors import PublishRefusedError
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import head_of


@contextmanager
def refused_if_main_moved(catalog: LakeCatalog, identifier: tuple[str, str], head: int | None) -> Iterator[None]:
    """Make any error of the block a refusal, if others have moved ``main`` since.

    Who publishes takes the branches away that can't be published any more: that shows as any error.

    Args:
        catalog: Where the table is.
        identifier: Namespace and name of the table.
        head: The snapshot that ``main`` was at.

    Raises:
        PublishRefusedError: If ``main`` is another snapshot by then.
        Exception: The block's own error, if it isn't.
    """
    try:
        yield
    except PublishRefusedError:
        raise
    except Exception as error:
        now = catalog.table(identifier)
        if (found := head_of(now) if now else None) == head:
            raise
        name = ".".join(identifier)
        raise PublishRefusedError(f"Table {name}: main moved from snapshot {head} to {found} meanwhile.") from error


class Later:
    """A session that is asked for when it is used: only where something is to be written, or to be taken away."""

    def __init__(self, spark: Callable[[], Any]) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark(), name)
