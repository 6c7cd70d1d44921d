"""What the library needs is told in pyproject.toml: packages with bounds that are tested, and files beside its code."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, SETUPTOOLS = WHOLE["project"], WHOLE["tool"]["setuptools"]
REQUIRED = [Requirement(text) for text in PROJECT["dependencies"]]
OPTIONAL = [Requirement(text) for extra in PROJECT["optional-dependencies"].values() for text in extra]
# Versions that are dates have no major one.
DATED = {"certifi"}
# Another package that is declared pins it, or its private part that we lean on is made of it.
BROUGHT_BY = {
    "alembic": "dagster",
    "botocore": "boto3",
    "dagster-shared": "dagster",
    "psycopg2-binary": "dagster-postgres",
    "py4j": "pyspark",
    "pydantic-core": "pydantic",
    "thrift": "pyiceberg",
    "tomlkit": "dagster",
}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported() -> Iterator[tuple[str, Path]]:
    """Yield each package of others that the library imports, and where."""
    for path in sorted((ROOT / "kafka_lake").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in (item.partition(".")[0] for item in names):
                if name not in sys.stdlib_module_names and name != "kafka_lake":
                    yield name, path


@pytest.mark.slow
def test_each_import_is_of_a_package_that_is_declared() -> None:
    declared = {canonical(requirement.name) for requirement in [*REQUIRED, *OPTIONAL]}
    of_modules = packages_distributions()
    # Extras that this environment lacks, and a module that comes with one of them.
    of_modules |= {"aws_msk_iam_sasl_signer": ["aws-msk-iam-sasl-signer-python"], "hive_metastore": ["pyiceberg"]}
    for module, path in imported():
        names = {canonical(name) for name in of_modules.get(module, [module])}
        assert {BROUGHT_BY.get(name, name) for name in names} & declared, f"{path} imports {module}"


@pytest.mark.parametrize("required", [*REQUIRED, *OPTIONAL], ids=str)
def test_each_package_has_a_lower_and_an_upper_bound(required: Requirement) -> None:
    kinds = {specifier.operator for specifier in required.specifier}
    assert kinds == ({">="} if required.name in DATED else {">=", "<"})


@pytest.mark.parametrize("required", REQUIRED, ids=str)
def test_locked_versions_are_within_declared_bounds(required: Requirement) -> None:
    assert version(required.name) in required.specifier


def test_each_file_that_the_library_reads_is_in_the_wheel() -> None:
    left_out = [pattern.replace(".", "/") for pattern in SETUPTOOLS["packages"]["find"]["exclude"]]
    package = ROOT / "kafka_lake"
    beside_code = {
        path.relative_to(package)
        for path in package.rglob("*")
        if path.is_file()
        and path.suffix not in (".py", ".pyc")
        and not any(fnmatch(path.parent.relative_to(ROOT).as_posix(), pattern) for pattern in left_out)
    }
    assert beside_code == {
        path.relative_to(package) for item in SETUPTOOLS["package-data"]["kafka_lake"] for path in package.glob(item)
    }
    # A pattern that nothing matches is of a file that has moved.
    assert all(list(package.glob(pattern)) for pattern in SETUPTOOLS["package-data"]["kafka_lake"])
