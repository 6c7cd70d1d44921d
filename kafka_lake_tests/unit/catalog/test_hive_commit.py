"""Commits to a Hive Metastore that names what they replace; the metastore is a stand-in that answers as told."""

from types import SimpleNamespace

import pytest
from pyiceberg.exceptions import CommitFailedException, ServerError, ServiceUnavailableError

from kafka_lake.catalog.pyiceberg_compat.hive import compare_on_commit, compares_on_commit
from kafka_lake.errors import CatalogRefusedError

pytest.importorskip("hive_metastore")
from hive_metastore.ttypes import EnvironmentContext, LockState, MetaException
from thrift.Thrift import TApplicationException
from thrift.transport.TTransport import TTransportException

MODIFIED = "The table has been modified. The parameter value for key 'metadata_location' is 'x'."


class Metastore:
    """One table; ``raises`` is what the next change ends with, after it was made if ``landed``."""

    def __init__(self):
        self.location, self.raises, self.landed, self.asked = "v1", None, False, []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def table(self, location):
        return SimpleNamespace(parameters={"metadata_location": location})

    def get_table(self, dbname, tbl_name):
        return self.table(self.location)

    def alter_table_with_environment_context(self, dbname, tbl_name, new_tbl, environment_context):
        self.asked.append(environment_context.properties)
        if self.landed or not self.raises:
            self.location = new_tbl.parameters["metadata_location"]
        if self.raises:
            raise self.raises

    def lock(self, request):
        return SimpleNamespace(state=LockState.ACQUIRED, lockid=1)

    def unlock(self, request):
        self.asked.append("unlocked")


def catalog(metastore, earlier=()):
    log = [SimpleNamespace(metadata_file=item) for item in earlier]
    files = SimpleNamespace(new_input=lambda location: SimpleNamespace(metadata_log=log))
    return compare_on_commit(
        SimpleNamespace(
            _client=metastore,
            _load_file_io=lambda location: files,
            _create_lock_request=lambda database, table: None,
        )
    )


@pytest.fixture(autouse=True)
def no_files(monkeypatch):
    monkeypatch.setattr("pyiceberg.serializers.FromInputFile.table_metadata", staticmethod(lambda file: file))


def commit(found, metastore):
    with found._client as client:
        client.get_table(dbname="a", tbl_name="t")
        client.alter_table_with_environment_context("a", "t", metastore.table("v2"), EnvironmentContext(properties={}))


def test_a_change_names_what_it_replaces():
    metastore = Metastore()
    commit(catalog(metastore), metastore)
    assert metastore.asked == [{"expected_parameter_key": "metadata_location", "expected_parameter_value": "v1"}]


def test_a_change_that_was_overtaken_has_failed():
    metastore = Metastore()
    metastore.raises = MetaException(MODIFIED)
    with pytest.raises(CommitFailedException):
        commit(catalog(metastore), metastore)


@pytest.mark.parametrize("followed", [False, True])
def test_a_change_that_the_metastore_made_and_tried_again_has_not(followed):
    metastore = Metastore()
    metastore.raises, metastore.landed = MetaException(MODIFIED), not followed
    metastore.location = "v3" if followed else "v1"
    commit(catalog(metastore, ["v1", "v2"] if followed else []), metastore)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (MetaException("a deadlock"), ServerError),
        (TTransportException(TTransportException.END_OF_FILE, "gone"), ServiceUnavailableError),
        (TApplicationException(1, "Invalid method name: 'get_table'"), CatalogRefusedError),
    ],
)
def test_of_no_other_error_is_the_commit_said_to_have_failed(raised, expected):
    metastore = Metastore()
    metastore.raises = raised
    with pytest.raises(expected):
        commit(catalog(metastore), metastore)


def test_whether_the_metastore_compares_is_tried_under_its_lock():
    metastore = Metastore()
    found = catalog(metastore)
    assert not compares_on_commit(found, "a", "t")
    metastore.raises = MetaException(MODIFIED)
    assert compares_on_commit(found, "a", "t")
    assert metastore.asked.count("unlocked") == 2
    assert metastore.location == "v1"


def test_a_catalog_that_was_not_taught_does_not_compare():
    assert not compares_on_commit(SimpleNamespace(_client=Metastore()), "a", "t")
