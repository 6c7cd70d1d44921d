"""The code location of this repository: loads `defs/`.

It is a package so that the wheel can leave it out, together with `defs/`: other projects have their own.
"""

from pathlib import Path

import dagster as dg

import kafka_lake


@dg.definitions
def defs() -> dg.Definitions:
    """Return everything that this deployment runs."""
    loaded: dg.Definitions = kafka_lake.load_from_defs_folder(path_within_project=Path(__file__).parent)
    return loaded
