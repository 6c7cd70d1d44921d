"""Finds the Dagster project of a command, as `dg` and `dagster` do.

Options and Dagster's environment variables come first. Then the nearest folder, upwards, with a ``pyproject.toml`` that
has ``[tool.dagster]`` or ``[tool.dg.project]``, or with a ``workspace.yaml``.
https://docs.dagster.io/api/clis/cli
"""

import os
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from kafka_lake.common import environment as variables
from kafka_lake.common.files import starting_folder
from kafka_lake.devstack.dagster_servers import CodeLocation
from kafka_lake.errors import ConfigurationError, NoProjectError

MODULE, FILE, WORKSPACE = "DAGSTER_MODULE_NAME", "DAGSTER_PYTHON_FILE", variables.WORKSPACE.name
"""Environment variables that name a project. Dagster has the first two."""
_NONE_HERE = "`kafka-lake init` creates a project. Name an existing one with -m MODULE, -f FILE or -w WORKSPACE."


@dataclass(frozen=True)
class Target:
    """A code location: the place of a project's definitions.

    Args:
        module: Name of the module; empty for a file.
        folder: First folder of Python's search path, absolute.
        file: The Python file, instead of a module.
        attribute: Name of the definitions in the module; None if it has only one.
        workspace: The workspace file that names the code location.
        name: Of the code location in ``pyproject.toml`` or the workspace file; empty if they have none.
    """

    module: str
    folder: Path
    file: Path | None = None
    attribute: str | None = None
    workspace: Path | None = None
    name: str = ""

    @property
    def code_location(self) -> CodeLocation:
        """What a code server loads, under the name by which Dagster knows sensors and runs."""
        name = self.module or (self.file.name if self.file else "")
        if self.attribute:
            name = f"{name}:{self.attribute}"
        attribute = ("-a", self.attribute) if self.attribute else ()
        options = ("-f" if self.file else "-m", str(self.file or self.module), "-d", str(self.folder), *attribute)
        return CodeLocation(self.name or name, options)

    def __str__(self) -> str:
        return str(self.file) if self.file else f"{self.module} in {self.folder}"


def dagster_folder(locations: Sequence[Target]) -> Path:
    """Return the folder of the workspace or the project, to start Dagster in."""
    return locations[0].workspace.parent if locations[0].workspace else locations[0].folder


def code_locations(locations: Sequence[Target]) -> list[CodeLocation]:
    """Return what code servers load for `targets`."""
    return [location.code_location for location in locations]


def other_locations(locations: Sequence[Target]) -> list[Mapping[str, Any]]:
    """Return the workspace file's entries that only Dagster loads: other servers, and other Pythons."""
    file = locations[0].workspace
    return [entry for entry in _entries(file) if not list(_of_entry(entry, file.parent))] if file else []


def choose(
    module: str | None, file: str | None, workspace: str | None, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Set the project of this process and of its children."""
    options = {MODULE: module, FILE: file, WORKSPACE: workspace}
    if len(chosen := [name for name, value in options.items() if value]) > 1:
        raise ConfigurationError(
            f"Several projects are named, by {' and '.join(chosen)}.",
            "Set only one of the options -m, -f, -w and these variables.",
        )
    environment.update({name: value for name, value in options.items() if value})


def project_folder() -> Path:
    """Return the folder with the project's ``.env`` and local state: the nearest with a project, or this one."""
    here = starting_folder()
    for folder in (here, *here.parents):
        with suppress(ConfigurationError):
            if _in_folder(folder):
                return folder
    return here


def targets(folder: Path | None = None, environment: Mapping[str, str] = os.environ) -> list[Target]:
    """Return the code locations of the current project."""
    folder = (folder or Path.cwd()).resolve()
    if module := environment.get(MODULE):
        return [Target(module, folder)]
    if file := environment.get(FILE):
        return [_in_file(folder / file, folder)]
    if workspace := environment.get(WORKSPACE):
        return _in_workspace(folder / workspace)
    for parent in (folder, *folder.parents):
        if locations := _in_folder(parent):
            return locations
    raise NoProjectError(f"No Dagster project is in {folder} or above it.", _NONE_HERE)


def _in_folder(folder: Path) -> list[Target]:
    """Return the code locations of a folder's own files; empty if it has no project."""
    if (file := folder / "pyproject.toml").is_file():
        try:
            location = _in_pyproject(file)
        except (TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(f"{file} can't be read as a Dagster project: {error!r}.") from error
        if location:
            return [location]
    return _in_workspace(file) if (file := folder / "workspace.yaml").is_file() else []


def _in_file(file: Path, folder: Path) -> Target:
    if not file.is_file():
        raise ConfigurationError(f"There is no file {file}.", _NONE_HERE)
    return Target("", folder, file.resolve())


def _in_workspace(file: Path) -> list[Target]:
    try:
        locations = [location for entry in _entries(file) for location in _of_entry(entry, file.parent.resolve())]
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(f"{file} can't be read as a workspace: {error}.") from error
    if not locations:
        raise ConfigurationError(f"{file} names no Python module and no Python file under load_from.", _NONE_HERE)
    return [replace(location, workspace=file.resolve()) for location in locations]


def _entries(file: Path) -> list[Any]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        return list(document.get("load_from") or ()) if isinstance(document, Mapping) else []
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError) as error:
        raise ConfigurationError(f"{file} can't be read as a workspace: {error}.") from error


def _of_entry(entry: Any, folder: Path) -> Iterator[Target]:
    """Yield the code location of a workspace entry that names a module or a file for this Python."""
    for kind, key in (("python_module", "module_name"), ("python_file", "relative_path")):
        if kind not in entry:
            continue
        settings = entry[kind] if isinstance(entry[kind], Mapping) else {key: entry[kind]}
        if "executable_path" in settings:
            continue
        where = folder / (settings.get("working_directory") or "")
        location = Target(settings[key], where) if kind == "python_module" else _in_file(folder / settings[key], where)
        yield replace(location, attribute=settings.get("attribute"), name=settings.get("location_name") or "")


def _in_pyproject(file: Path) -> Target | None:
    folder, (dagster, dg) = file.parent, _sections(file)
    name = dagster.get("code_location_name") or ""
    if "module_name" in dagster:
        return Target(dagster["module_name"], folder, name=name)
    if dg.get("directory_type") == "workspace":
        projects = ", ".join(project.get("path", "") for project in dg.get("workspace", {}).get("projects", ()))
        raise ConfigurationError(
            f"{file} is a workspace of several projects{f': {projects}' if projects else ''}.",
            "Run the command in the folder of one of them.",
        )
    project = dg.get("project", {})
    if "root_module" not in project:
        return None
    if project.get("autoload_defs"):
        raise ConfigurationError(
            f"{file}: [tool.dg.project] has autoload_defs, which kafka-lake's commands don't read.",
            "Remove it, and load the folder in definitions.py, as `kafka-lake init` writes it.",
        )
    module = project.get("code_location_target_module", f"{project['root_module']}.definitions")
    return Target(module, folder, name=project.get("code_location_name") or "")


def _sections(file: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a file's settings for `dagster` and for `dg`."""
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{file} can't be read: {error}.") from error
    return tools.get("dagster", {}), tools.get("dg", {})


def defs_folder(file: Path) -> Path:
    """Return the folder of the project's YAML documents."""
    for folder in file.resolve().parents:
        if not (folder / "pyproject.toml").is_file():
            continue
        project = _sections(folder / "pyproject.toml")[1].get("project", {})
        if root := project.get("root_module"):
            parts = project.get("defs_module", f"{root}.defs").split(".")
            folders = [folder.joinpath(*parts), folder.joinpath("src", *parts)]
            return next((path for path in folders if path.is_dir()), folders[0])
    return file.resolve().parent / "defs"
