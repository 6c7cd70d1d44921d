"""Where a project is and keeps its files: local state of a deployment, and downloads shared by all of a user's."""

import os
import shutil
from importlib.resources import files
from pathlib import Path

from kafka_lake.common import environment


def home() -> Path:
    """Return the folder of this deployment's local state: ``$KAFKA_LAKE_HOME`` or ``./.kafka_lake``, absolute."""
    return Path(environment.HOME.value()).resolve()


def starting_folder() -> Path:
    """Return where a project's own files are looked for, upwards: the workspace's folder if one is named, or this."""
    workspace = environment.WORKSPACE.value()
    return Path(workspace).resolve().parent if workspace else Path.cwd()


def cache() -> Path:
    """Return the user's download cache: ``$KAFKA_LAKE_CACHE``, or ``kafka_lake`` in the XDG cache folder."""
    if explicit := environment.CACHE.value():
        return Path(explicit).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "kafka_lake"


def dagster_home() -> Path:
    """Make the folder of Dagster's storage and return it, for ``DAGSTER_HOME``.

    It gets the project's ``dagster.yaml``, or the one of this package if the project has none.
    """
    folder = home() / "dagster"
    folder.mkdir(parents=True, exist_ok=True)
    if (own := _own_dagster_yaml()) is not None:
        shutil.copy(own, folder)
    else:
        (folder / "dagster.yaml").write_bytes(files("kafka_lake.common").joinpath("dagster.yaml").read_bytes())
    return folder


def _own_dagster_yaml() -> Path | None:
    """Return the project's ``dagster.yaml``: the nearest one, no further up than the project's folder."""
    here = starting_folder()
    for each in (here, *here.parents):
        if (each / "dagster.yaml").is_file():
            return each / "dagster.yaml"
        if any((each / name).is_file() for name in ("pyproject.toml", "dg.toml", "workspace.yaml")):
            return None
    return None
