"""The code location: loads the documents in `defs/`."""

from pathlib import Path

import dagster as dg
import kafka_lake


@dg.definitions
def defs() -> dg.Definitions:
    return kafka_lake.load_from_defs_folder(path_within_project=Path(__file__).parent)
