"""Folders of a deployment and of downloads, and atomic writes of files."""

import os
from importlib.resources import files
from pathlib import Path
from uuid import uuid4

from kafka_lake.common import environment

_LIMIT = "max_concurrent_runs"


def home() -> Path:
    """Return the folder of this deployment's local state: ``$KAFKA_LAKE_HOME`` or ``./.kafka_lake``, absolute."""
    return Path(environment.HOME.value()).resolve()


def ensure_home() -> Path:
    """Create the folder of this deployment's local state for its owner alone, and return it."""
    folder = home()
    folder.parent.mkdir(parents=True, exist_ok=True)
    # An existing folder keeps its rights.
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def starting_folder() -> Path:
    """Return the folder from which a project is searched upwards: that of a named workspace, or the current one."""
    workspace = environment.WORKSPACE.value()
    return Path(workspace).resolve().parent if workspace else Path.cwd()


def cache() -> Path:
    """Return the user's download cache: ``$KAFKA_LAKE_CACHE``, or ``kafka_lake`` in the XDG cache folder."""
    if explicit := environment.CACHE.value():
        return Path(explicit).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "kafka_lake"


def dagster_home() -> Path:
    """Create the folder for ``DAGSTER_HOME`` and return it.

    It gets the project's ``dagster.yaml``, or the one of this package. Without a limit of concurrent runs, the copy
    gets one by this machine's cores: otherwise runs could exceed Dagster's start timeout.
    """
    folder = ensure_home() / "dagster"
    folder.mkdir(exist_ok=True)
    source = _project_dagster_yaml() or files("kafka_lake.common").joinpath("dagster.yaml")
    (folder / "dagster.yaml").write_text(_bounded(source.read_text(), runs_at_once(os.cpu_count() or 1)))
    return folder


def runs_at_once(cores: int) -> int:
    """Return how many runs, each with its own Spark, a machine can start within Dagster's timeout.

    >>> runs_at_once(1), runs_at_once(2), runs_at_once(8)
    (4, 4, 16)
    """
    return max(4, 2 * cores)


def _bounded(text: str, runs: int) -> str:
    """Add a limit of runs to a ``dagster.yaml``, unless it has one or is invalid."""
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
        # Dagster reports the error.
        return text
    return yaml.safe_dump(settings, sort_keys=False)


def _project_dagster_yaml() -> Path | None:
    """Return the project's ``dagster.yaml``: the nearest one, up to the project's folder."""
    here = starting_folder()
    for folder in (here, *here.parents):
        if (folder / "dagster.yaml").is_file():
            return folder / "dagster.yaml"
        if any((folder / name).is_file() for name in ("pyproject.toml", "workspace.yaml")):
            return None
    return None


def write_atomic(path: Path, text: str, *, owner_only: bool = False) -> None:
    """Replace a file atomically: readers get the old content or the new one."""
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if owner_only else 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
