"""Private parts of other packages are used in their places only."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from dagster_pyspark import LazyPySparkResource

import kafka_lake

PACKAGE = Path(kafka_lake.__file__).parent
PLACES = ("catalog/pyiceberg_compat", "engine/", "writers/task/pyiceberg_compat.py")
FILES = sorted(path for path in PACKAGE.rglob("*.py") if not path.relative_to(PACKAGE).as_posix().startswith(PLACES))
# Documented, underscore or not: https://docs.confluent.io/platform/current/clients/confluent-kafka-python/html/
_ERROR_CODE = re.compile(r"(ClientError|KafkaError)\._[A-Z_]+")
_DOCUMENTED = {"os._exit"}
# Without an underscore, and nowhere in PySpark's reference: https://spark.apache.org/docs/latest/api/python/reference/
_UNDOCUMENTED = re.compile(r"pyspark\.(cloudpickle|core|daemon|java_gateway|sql\.pandas|worker)\b")
_BY_NAME = {"delattr", "getattr", "hasattr", "setattr"}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def uses(tree: ast.Module) -> Iterator[str]:
    """Give what a module uses of others' private parts: names with one underscore that it doesn't define itself."""
    own = defined(tree)
    for node in ast.walk(tree):
        if _is_foreign(node, own):
            yield f"{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"


def _is_foreign(node: ast.AST, own: set[str]) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        names = [start + alias.name for alias in node.names if not start.startswith("kafka_lake.")]
        return any(_UNDOCUMENTED.match(name) or any(map(private, name.split("."))) for name in names)
    if isinstance(node, ast.Attribute):
        text = ast.unparse(node)
        documented = text in _DOCUMENTED or _ERROR_CODE.fullmatch(text)
        return private(node.attr) and node.attr not in own and not documented
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BY_NAME:
        return any(isinstance(arg, ast.Constant) and private(str(arg.value)) for arg in node.args[1:2])
    return False


def defined(tree: ast.Module) -> set[str]:
    """Return the private names that the classes of a module, and their bases of ours, define in bodies or on self."""
    owners = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {base.id for owner in owners for base in owner.bases if isinstance(base, ast.Name)}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and bases & {alias.name for alias in node.names}:
            file = PACKAGE.parent.joinpath(*node.module.split(".")).with_suffix(".py")
            names |= defined(parsed(file)) if file.is_file() else set()
    for owner in owners:
        for node in owner.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
        attributes = (node for node in ast.walk(owner) if isinstance(node, ast.Attribute))
        names |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store) and _is_self(node.value)}
    return {name for name in names if private(name)}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@pytest.mark.slow
def test_private_parts_of_libraries_stay_in_their_modules() -> None:
    found = [f"{path.relative_to(PACKAGE)}:{use}" for path in FILES for use in uses(parsed(path))]
    assert not found, f"Is there a public way? Else it belongs in one of {PLACES}."


@pytest.mark.parametrize(
    "line",
    [
        "from pyiceberg.io.pyarrow import _determine_partitions",
        "from dagster._core.origin import JobPythonOrigin",
        "import dagster._cli.api",
        "from pyspark import cloudpickle",
        "from pyspark.sql.pandas.types import to_arrow_schema",
        "def f(table):\n    table._catalog.drop()",
        "def f(spark):\n    return spark._jvm",
        "class A:\n    def f(self):\n        return self._jdf",
        "def f(x):\n    return getattr(x, '_schema', None)",
        "class A:\n    _y = 1\n    def f(self, other):\n        return other._x",
    ],
)
def test_a_new_use_is_found(line: str) -> None:
    assert list(uses(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "from kafka_lake.catalog.tables import _is_unused",
        "from __future__ import annotations",
        "import os\nos._exit(0)",
        "ClientError._PARTITION_EOF",
        "class A:\n    _x: int = 0\n    def f(self, other):\n        return self._x + other._x",
        "class A:\n    def __init__(self):\n        self._x = self.__dict__",
    ],
)
def test_own_and_documented_parts_are_not_private(line: str) -> None:
    assert not list(uses(ast.parse(line)))


def subclasses_of_others() -> Iterator[tuple[type, set[str]]]:
    """Give the package's classes with their private names."""
    for path in FILES:
        tree = parsed(path)
        owners = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.bases]
        if owners:
            module = import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
            for owner in owners:
                yield getattr(module, owner.name), defined(ast.Module([owner], []))


def known_to(base: type) -> set[str]:
    slots: Any = vars(base).get("__private_attributes__", {})
    return {*vars(base), *slots, *vars(base).get("__annotations__", {})}


def overridden(owner: type, names: set[str]) -> list[str]:
    return [
        f"{owner.__module__}.{owner.__qualname__}.{name} is {base.__module__}.{base.__qualname__}'s"
        for base in owner.__mro__[1:]
        if base.__module__.split(".")[0] not in ("kafka_lake", "builtins", *sys.stdlib_module_names)
        for name in names & known_to(base)
    ]


@pytest.mark.slow
def test_no_class_overrides_a_private_part_of_a_base_class() -> None:
    assert not [name for owner, names in subclasses_of_others() for name in overridden(owner, names)]


def test_an_overridden_private_part_is_found() -> None:
    class Resource(LazyPySparkResource):
        pass

    assert overridden(Resource, {"_spark_session", "_mine"}) == [
        f"{__name__}.{Resource.__qualname__}._spark_session is dagster_pyspark.resources.LazyPySparkResource's"
    ]
