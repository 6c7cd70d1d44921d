"""The code location: loads what `defs/` says, nothing else."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Return everything that this deployment runs."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
