"""Code of packages named ``task`` is sent to Spark's workers, which don't have kafka_lake."""

import ast
from pathlib import Path

import kafka_lake

_PACKAGE = Path(kafka_lake.__file__).parent


def test_task_packages_import_only_task_packages() -> None:
    modules = [path for folder in _PACKAGE.rglob("task") for path in folder.glob("*.py")]
    assert len(modules) > 30
    wrong = [
        f"{path.relative_to(_PACKAGE)}:{node.lineno}: {node.module}"
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kafka_lake")
        if "task" not in (node.module or "").split(".")
    ]
    assert wrong == []
