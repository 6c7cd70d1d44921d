"""A package has few public modules: `pyproject.toml` lists them, and import-linter keeps all others private."""

import ast
from pathlib import Path

import pytest

from kafka_lake_tests.meta.packages import ROOT, public_modules

MOST = 8
# Dagster, the command line and derived tables use the parts of a run one by one.
MORE = {"ingest": 9}
USERS = [path for folder in ("benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("package", public_modules())
def test_package_has_few_public_modules(package: str) -> None:
    # Packages named `task` are the side of Spark's workers, which import only each other.
    on_driver = [name for name in public_modules()[package] if "task" not in name.split(".")]
    assert len(on_driver) <= MORE.get(package, MOST), on_driver


@pytest.mark.parametrize("path", USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_benchmarks_and_examples_import_public_modules(path: Path) -> None:
    public = public_modules()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kafka_lake."):
            package, _, module = str(node.module).removeprefix("kafka_lake.").partition(".")
            names = {module} if module else {alias.name for alias in node.names}
            if package not in ("defs", "errors", "error_classification"):
                assert names <= {*public[package]}, f"line {node.lineno}"
