"""Calls name what they pass: five values in a row say nothing, and two of them can be swapped unseen."""

import ast
from collections.abc import Collection
from pathlib import Path

import pytest

import kafka_lake

_MOST = 4
_PACKAGE = Path(kafka_lake.__file__).parent
_OF_ANY_NUMBER = frozenset({"add_row", "field_validator", "filter", "find", "info", "select", "struct", "warning"})
"""Methods of libraries that take as many values of one kind as there are: cells, columns, parts of a line."""


def _variadic(tree: ast.AST) -> set[str]:
    """Return the functions of ours that take any number of values."""
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.args.vararg is not None}


def _unnamed(tree: ast.AST, variadic: Collection[str]) -> list[tuple[int, str]]:
    """Return the line and the callee of each call with too many positional arguments."""
    return [
        (node.lineno, ast.unparse(node.func))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and len(node.args) > _MOST
        and not any(isinstance(arg, ast.Starred) for arg in node.args)
        and getattr(node.func, "attr", getattr(node.func, "id", None)) not in variadic
    ]


@pytest.mark.slow
def test_calls_pass_at_most_four_positional_values() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted(_PACKAGE.rglob("*.py"))}
    assert trees
    variadic = _OF_ANY_NUMBER.union(*map(_variadic, trees.values()))
    found = [
        f"{path.relative_to(_PACKAGE.parent)}:{line}: {callee}"
        for path, tree in trees.items()
        for line, callee in _unnamed(tree, variadic)
    ]
    assert not found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("f(1, 2, 3, 4)", []),
        ("f(1, 2, 3, 4, 5)", [(1, "f")]),
        ("a.f(1, 2, 3, 4, 5)", [(1, "a.f")]),
        ("f(1, 2, 3, 4, e=5)", []),
        ("f(*many, 2, 3, 4, 5)", []),
        ("frame.select(1, 2, 3, 4, 5)", []),
        ("def g(*values): ...\ng(1, 2, 3, 4, 5)", []),
    ],
)
def test_a_call_is_found_by_its_positional_arguments(source: str, expected: list[tuple[int, str]]) -> None:
    tree = ast.parse(source)
    assert _unnamed(tree, _OF_ANY_NUMBER | _variadic(tree)) == expected
