"""Metadata files: none that Java wouldn't load again, and those of format version 3 to the letter."""

import json
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.types import StringType

from kafka_lake.error_classification import is_transient
from kafka_lake.errors import CatalogError

NAME = ("lake", "pizzas")
ROWS = pa.table({"id": [1]})


@pytest.fixture
def catalog(catalog):
    catalog.ensure_namespace("lake")
    return catalog


def written(table):
    return json.loads(Path(urlsplit(table.metadata_location).path).read_text())


def rewritten(catalog, change):
    """Return the table with a metadata file that somebody else has written."""
    table = catalog.table(NAME)
    document = written(table)
    change(document)
    path = Path(urlsplit(table.metadata_location).path).with_name(f"00009-{uuid4()}.metadata.json")
    path.write_text(json.dumps(document))
    catalog.pyiceberg.drop_table(NAME)
    return catalog.pyiceberg.register_table(NAME, f"file://{path}")


@pytest.mark.parametrize("act", ["append", "create a branch", "add a column"])
def test_no_commit_before_the_one_before_it(act, catalog):
    catalog.pyiceberg.create_table(NAME, ROWS.schema).append(ROWS)
    ahead = 100_000

    def from_the_future(document):
        document["last-updated-ms"] += ahead
        document["snapshot-log"][-1]["timestamp-ms"] += ahead

    table = rewritten(catalog, from_the_future)
    before, head = written(table), table.current_snapshot().snapshot_id
    acts = {
        "append": lambda: table.append(ROWS),
        "create a branch": lambda: table.manage_snapshots().create_branch(head, "b").commit(),
        "add a column": lambda: table.update_schema().add_column("more", StringType()).commit(),
    }
    with pytest.raises(CatalogError, match=r"is (99|100) s in the future by this machine's clock") as caught:
        acts[act]()
    assert is_transient(caught.value), "it works after that time"
    assert written(catalog.table(NAME)) == before


def test_version_3_is_changed_and_what_pyiceberg_does_not_know_stays(catalog):
    table = catalog.pyiceberg.create_table(NAME, ROWS.schema, properties={"format-version": "3"})
    assert written(table)["next-row-id"] == 0
    encryption = [{"key-id": "a", "encrypted-key-metadata": "eA==", "new-in-a-later-version": [1]}]

    def add_unknown(document):
        document["encryption-keys"] = encryption
        document["schemas"][0]["unknown"] = "of the schema"

    with rewritten(catalog, add_unknown).update_schema() as update:
        update.add_column("more", StringType())
    now = written(catalog.table(NAME))
    assert now["encryption-keys"] == encryption
    assert [schema.get("unknown") for schema in now["schemas"]] == ["of the schema", None]
    assert [field["name"] for field in now["schemas"][1]["fields"]] == ["id", "more"]
    assert now["next-row-id"] == 0
    assert len(now["metadata-log"]) == 1


def test_catalogs_of_users_in_the_same_process_are_as_they_were(catalog):
    theirs = load_catalog("lake", **catalog.properties)
    assert catalog.pyiceberg._write_metadata is not theirs._write_metadata
    with pytest.raises(NotImplementedError):
        theirs.create_table(NAME, ROWS.schema, properties={"format-version": "3"})
