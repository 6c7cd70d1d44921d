"""A catalog on this machine, for tests that need no engine."""

from pathlib import Path

import pytest

from kafka_lake.catalog.lake_catalog import LakeCatalog


@pytest.fixture
def catalog(tmp_path: Path) -> LakeCatalog:
    """An empty SQLite catalog; modules that want something in it have a fixture of the same name on top of it."""
    return LakeCatalog(
        "lake",
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"},
    )
