"""Where a project is and keeps its files: local state of a deployment, and downloads shared by all of a user's."""

import os
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
