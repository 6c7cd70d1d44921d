"""The packages of kafka_lake, as `pyproject.toml` and their docstrings declare them."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kafka_lake"


def _contracts(kind: str) -> list[dict[str, Any]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [contract for contract in contracts if contract["type"] == kind]


def layers() -> list[str]:
    """Return the packages and modules of `kafka_lake`, from the highest layer down."""
    (contract,) = _contracts("layers")
    return [name for layer in contract["layers"] for name in layer.replace("|", ":").replace(" ", "").split(":")]


def public_modules() -> dict[str, list[str]]:
    """Return the public modules of each package, relative to it: those of its contract, or all if it has none."""
    listed = {
        contract["name"].rpartition(" ")[2]: [line.partition(" -> ")[2] for line in contract["ignore_imports"]]
        for contract in _contracts("protected")
    }
    packages = [PACKAGE / name for name in layers() if (PACKAGE / name).is_dir()]
    return {package.name: [*_relative(listed.get(package.name), package)] for package in packages}


def _relative(listed: list[str] | None, package: Path) -> Iterator[str]:
    if listed is not None:
        yield from (name.removeprefix(f"kafka_lake.{package.name}.") for name in listed)
        return
    for path in sorted(package.rglob("*.py")):
        if not path.name.startswith("__") and package.name not in ("defs", "definitions"):
            yield ".".join(path.relative_to(package).with_suffix("").parts)


def packages() -> str:
    """Return the list of packages for docs/architecture.md."""
    return "\n".join(f"- `{name}`: {_first_line(name)}" for name in layers())


def _first_line(name: str) -> str:
    path = PACKAGE / name / "__init__.py"
    text = (path if path.exists() else PACKAGE / f"{name}.py").read_text()
    return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
