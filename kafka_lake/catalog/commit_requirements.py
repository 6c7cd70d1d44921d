"""Test whether a catalog refuses outdated commits, which exactly-once needs.

Iceberg's REST specification asks it of every server (``assert-ref-snapshot-id`` of ``updateTable``,
https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from pyiceberg.exceptions import BadRequestError, CommitFailedException, RESTError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.pyiceberg_compat.hive import compares_on_commit
from kafka_lake.errors import CatalogRefusedError

_PROBE = "kafka_lake_probe"
_NO_SNAPSHOT = 1


def enforces_requirements(table: Table) -> bool:
    """Return whether the catalog refuses a commit that asserts a missing branch.

    A catalog that accepts it has set the property ``kafka-lake.commit-requirements``, and nothing else.
    """
    asserted = AssertRefSnapshotId.model_validate(
        {"type": "assert-ref-snapshot-id", "ref": _PROBE, "snapshot-id": _NO_SNAPSHOT}
    )
    try:
        table.catalog.commit_table(
            table, (asserted,), (SetPropertiesUpdate(updates={"kafka-lake.commit-requirements": "ignored"}),)
        )
    except (CommitFailedException, BadRequestError):
        return True
    return False


def check_commit_requirements(catalog: LakeCatalog, table: Table) -> None:
    """Test whether a REST catalog or a Hive Metastore refuses outdated commits; databases and Glue always do."""
    if catalog.type == "rest" and not enforces_requirements(table):
        raise CatalogRefusedError(
            f"Catalog {catalog.name} at {catalog.address_of('uri')} accepts commits whose assertions don't hold "
            f"(assert-ref-snapshot-id, tried on table {'.'.join(table.name())}): writers would undo each other's rows.",
            "Use a catalog that follows Iceberg's REST specification, or a version of this one that does.",
        )
    if catalog.type == "hive" and not compares_on_commit(catalog.pyiceberg, *table.name()[-2:]):
        raise CatalogRefusedError(
            f"Catalog {catalog.name}: the Hive Metastore at {catalog.address_of('uri')} accepts commits "
            f"although another one came first (expected_parameter_key, tried on table {'.'.join(table.name())}): a "
            "writer that is suspended for longer than its lock would undo other writers' rows.",
            "Use Hive Metastore 2.3.10 or 4.0.0, which compare (HIVE-26882), or a REST catalog.",
        )


@contextmanager
def probe_table(catalog: LakeCatalog) -> Iterator[Table]:
    """Yield a new table in a new namespace; both are dropped when the block ends."""
    client, namespace = catalog.pyiceberg, f"kafka_lake_doctor_{uuid4().hex[:12]}"
    name = (namespace, "probe")
    client.create_namespace(namespace)
    is_made = False
    try:
        table = client.create_table(name, Schema(NestedField(1, "id", LongType(), required=False)))
        is_made = True
        yield table
    finally:
        try:
            if is_made:
                catalog.purge(name)
            client.drop_namespace(namespace)
        except RESTError as error:
            raise CatalogRefusedError(
                f"Catalog {catalog.name}: what was made to try it can't be dropped: {error}.",
                f"Drop namespace {namespace} and the table in it.",
            ) from error
