"""Where a project is and keeps its files: local state of a deployment, and downloads shared by all of a user's."""

import os
from importlib.resources import files
from pathlib import Path

from kafka_lake.common import environment

_LIMIT = "max_concurrent_runs"
_OWNER_ONLY = 0o700
_OTHERS = 0o077


def home() -> Path:
    """Return the folder of this deployment's local state: ``$KAFKA_LAKE_HOME`` or ``./.kafka_lake``, absolute."""
    return Path(environment.HOME.value()).resolve()


def ensure_home() -> Path:
    """Make the folder of this deployment's local state if it isn't there, for its owner alone, and return it.

    An older ``.kafka_lake`` that others can open is closed to them. A folder of another name that is there keeps its
    rights: its owner has chosen them.

    Raises:
        OSError: If it can't be made.
    """
    folder = home()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
    found = folder.stat()
    if folder.name == environment.HOME.default and found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
        folder.chmod(_OWNER_ONLY)
    return folder


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

    It gets the project's ``dagster.yaml``, or the one of this package if the project has none. Where that doesn't say
    how many runs there may be at once, the copy says it by the cores of this machine: runs that start while others
    keep the cores busy are ended by Dagster's start timeout.
    """
    folder = ensure_home() / "dagster"
    folder.mkdir(exist_ok=True)
    source = _own_dagster_yaml() or files("kafka_lake.common").joinpath("dagster.yaml")
    (folder / "dagster.yaml").write_text(_bounded(source.read_text(), runs_at_once(os.cpu_count() or 1)))
    return folder


def runs_at_once(cores: int) -> int:
    """Return how many runs a machine starts within Dagster's start timeout, each with a Spark of its own.

    >>> runs_at_once(1), runs_at_once(2), runs_at_once(8)
    (4, 4, 16)
    """
    return max(4, 2 * cores)


def _bounded(text: str, runs: int) -> str:
    """Return a ``dagster.yaml`` with a limit of runs; one that has a limit, or can't be read, stays as it is."""
    # Most commands need no YAML.
    import yaml

    try:
        settings = yaml.safe_load(text) or {}
        queue = settings.get("run_coordinator", {}).get("config") or {}
        limits = settings.setdefault("concurrency", {}).setdefault("runs", {})
        if _LIMIT in limits or _LIMIT in queue:
            return text
        limits[_LIMIT] = runs
    except (yaml.YAMLError, AttributeError, TypeError):
        # Dagster says what is wrong with it.
        return text
    return yaml.safe_dump(settings, sort_keys=False)


def _own_dagster_yaml() -> Path | None:
    """Return the project's ``dagster.yaml``: the nearest one, no further up than the project's folder."""
    here = starting_folder()
    for each in (here, *here.parents):
        if (each / "dagster.yaml").is_file():
            return each / "dagster.yaml"
        if any((each / name).is_file() for name in ("pyproject.toml", "dg.toml", "workspace.yaml")):
            return None
    return None
