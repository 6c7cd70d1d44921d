"""The folders of a deployment and of a user's downloads; files that are there as a whole or not at all."""

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
    """Make the folder of this deployment's local state if it isn't there, for its owner alone, and return it."""
    folder = home()
    folder.parent.mkdir(parents=True, exist_ok=True)
    # One that is there keeps the rights that its owner has chosen.
    folder.mkdir(mode=0o700, exist_ok=True)
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

    It gets the project's ``dagster.yaml``, or the one of this package. If that doesn't limit the runs at once, the copy
    limits them by this machine's cores: Dagster's start timeout ends runs that start while others keep the cores busy.
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


def write_atomic(path: Path, text: str, *, owner_only: bool = False) -> None:
    """Write a file in one step: a reader gets what was there before, or all of the new text."""
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if owner_only else 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
