"""What runs need, for the process that they are forked from: imported, and nothing left open or running."""

import gc
from tempfile import TemporaryDirectory
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
from dagster.components.core import load_defs

import kafka_lake.components

__all__ = ["dagster", "jinja2", "kafka_lake", "pyiceberg", "pyspark", "tomlkit"]


def _without_schemas(tree: Any) -> dg.Definitions:
    """Stand in for a description of all component types, which only the code server is asked for."""
    return dg.Definitions(component_tree=tree)


@dg.asset
def _nothing() -> None: ...


def _rehearse() -> None:
    """Have a run of nothing, since much of what Dagster's storage and execution need is imported with the first."""
    silent = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with TemporaryDirectory() as folder, dg.DagsterInstance.local_temp(folder) as instance:
        dg.materialize([_nothing], instance=instance, run_config=silent)


load_defs.get_library_json_enriched_defs = _without_schemas
_rehearse()
# The collector needn't look at what is here already; its looks would be writes to memory that runs share.
gc.collect()
gc.freeze()
