"""Each folder of tests is run by a target of make."""

import re
from pathlib import Path

from kafka_lake_tests.contract.__main__ import FOLDERS

TESTS = Path(__file__).parents[1]


def test_each_folder_of_tests_is_in_a_target_of_make() -> None:
    folders = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
    reported = [item.split(",") for item in re.findall(r"\$\(addprefix kafka_lake_tests/,([a-z0-9_ ]+)\)", makefile)]
    named = {name for (names,) in reported for name in names.split()}
    assert folders <= named | set(re.findall(r" kafka_lake_tests/([a-z0-9_]+)", makefile))
    # All of `make test` and `make exhaustive`, except what `make lint` and `make nightly` run.
    assert folders - {"nightly", "meta"} <= named


def test_the_pairs_have_the_marked_tests_of_each_folder() -> None:
    marked = {
        path.relative_to(TESTS).parts[0]
        for path in TESTS.rglob("test_*.py")
        if re.search(r"mark\.(every_pair|in_contract)", path.read_text(encoding="utf-8"))
    }
    assert marked <= set(FOLDERS)
