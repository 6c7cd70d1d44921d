"""What runs need, for the process that they are forked from: imported, and nothing left open or running."""

import gc
from collections.abc import Callable
from functools import cache
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import dagster as dg
import dagster._cli.api
import dagster.components.core.snapshot
import jinja2.nativetypes
import pyiceberg.avro.decoder_fast
import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow
import pyspark.sql.connect.session
import tomlkit
from alembic.config import Config
from alembic.script import ScriptDirectory
from dagster._core.definitions import reconstruct
from dagster._core.storage import sql
from dagster.components.core import load_defs

import kafka_lake.components
from kafka_lake.ingest.stage import arrow as arrow_stage

__all__ = ["dagster", "jinja2", "kafka_lake", "pyiceberg", "pyspark", "tomlkit"]


def _without_schemas(tree: Any) -> dg.Definitions:
    """Stand in for a description of all component types, which only the code server is asked for."""
    return dg.Definitions(component_tree=tree)


@dg.asset
def _nothing() -> None: ...


def _import_ahead() -> None:
    """Have a run of nothing, since much of what Dagster's storage and execution need is imported with the first."""
    silent = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with TemporaryDirectory() as folder, dg.DagsterInstance.local_temp(folder) as instance:
        dg.materialize([_nothing], instance=instance, run_config=silent)


def _migrations_read_once(read: type[ScriptDirectory]) -> Any:
    """Return what stands in for the reader of a store's migrations: Dagster reads them all whenever it opens one."""
    known: dict[str | None, ScriptDirectory] = {}

    def from_config(config: Config) -> ScriptDirectory:
        where = config.get_main_option("script_location")
        if where not in known:
            known[where] = read.from_config(config)
        return known[where]

    return SimpleNamespace(from_config=from_config)


def _swap(module: ModuleType, name: str, swapped: Callable[[Any], Any]) -> None:
    """Swap something of Dagster's own; another version that hasn't it works as well, only slower."""
    if hasattr(module, name):
        setattr(module, name, swapped(getattr(module, name)))


_swap(load_defs, "get_library_json_enriched_defs", lambda _: _without_schemas)
_swap(sql, "ScriptDirectory", _migrations_read_once)
# A run loads its location's definitions for all jobs first, and once more for the assets that it makes.
_swap(reconstruct, "reconstruct_repository_def_from_pointer", cache)
arrow_stage.prepare()
_import_ahead()
# The collector needn't look at what is here already; its looks would be writes to memory that runs share.
gc.collect()
gc.freeze()
