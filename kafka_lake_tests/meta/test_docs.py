"""Generated parts of pages are up to date: `UPDATE_DOCS=1 pytest` on this file writes them again."""

import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from kafka_lake import errors as errors_module
from kafka_lake.error_classification import is_transient
from kafka_lake.errors import KafkaLakeError, PublishRefusedError
from kafka_lake.observability.metrics import reference
from kafka_lake.orchestration.how_to_read import how_to_read
from kafka_lake_tests.meta.generated_pages import commands, error_classes, errors
from kafka_lake_tests.meta.generated_tables import of_a_topic, of_others
from kafka_lake_tests.meta.packages import packages
from kafka_lake_tests.meta.type_tables import tables
from kafka_lake_tests.report import table as lanes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {
    **tables(),
    **of_a_topic(),
    **of_others(),
    "errors": errors(),
    "commands": commands(),
    "metrics": reference(),
    "packages": packages(),
    "lanes": lanes(),
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_part_of_a_page_is_what_the_code_says(name: str) -> None:
    between = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
    expected = f"{GENERATED[name]}\n"
    (path,) = (path for path in DOCS.glob("*.md") if between.search(path.read_text()))
    if os.environ.get("UPDATE_DOCS"):
        path.write_text(between.sub(lambda _: expected, path.read_text()))
    assert between.findall(path.read_text()) == [expected]


def test_tutorial_reads_table_by_code_of_the_table_page() -> None:
    assert _python_by_tool(DOCS / "tutorial.md") == how_to_read("lake", ("lake", "web_orders"))


def test_readme_reads_table_by_code_of_the_table_page() -> None:
    assert _python_by_tool(ROOT / "README.md") == how_to_read("lake", ("shop", "orders"))


def test_the_tree_of_errors_is_that_of_their_classes() -> None:
    drawn = re.findall(r"^ {4}( *\w+Error)", errors_module.__doc__ or "", re.MULTILINE)
    assert _parents(drawn) == {class_.__name__: class_.__mro__[1].__name__ for class_ in error_classes()[:-1]}


@pytest.mark.parametrize("error", error_classes())
def test_every_error_says_what_it_means_and_what_to_do(error: type[KafkaLakeError]) -> None:
    assert error.__dict__.get("__doc__")
    assert error.__dict__.get("what_to_do"), "what_to_do of a base class is about other errors"


@pytest.mark.parametrize("error", error_classes())
def test_error_page_describes_actual_retries(error: type[KafkaLakeError]) -> None:
    # A run plans again after a refused publication, which is more than to try the same again.
    assert error.retry_helps == (error is PublishRefusedError or is_transient(error.__new__(error)))


def test_cdc_page_begins_with_the_document_of_the_demo() -> None:
    page = (DOCS / "cdc.md").read_text()
    document = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    demo = yaml.safe_load((ROOT / "kafka_lake" / "defs" / "shop" / "customers" / "defs.yaml").read_text())
    assert document["type"] == "kafka_lake.KafkaTopic"
    del demo["attributes"]["table"]["owners"], demo["attributes"]["table"]["description"]
    assert document["attributes"] == demo["attributes"]


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    of_the_root = {"index.md", "contributing.md", "changelog.md", "security.md"}
    assert set(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)) == pages | of_the_root


def _python_by_tool(page: Path) -> dict[str, str]:
    return dict(re.findall(r"\*\*([\w ]+)\*\*\n\n```python\n(.*?)\n```", page.read_text(), re.DOTALL))


def _parents(drawn: list[str]) -> dict[str, str]:
    """Return the parent of each name of a tree that is drawn by indentation."""
    path, parents = list[str](), dict[str, str]()
    for line in drawn:
        name, depth = line.strip(), (len(line) - len(line.lstrip())) // 2
        path[depth:] = [name]
        if depth:
            parents[name] = path[depth - 1]
    return parents


_FILES = (
    "kafka_lake/engine/ivy.xml",
    "kafka_lake_tests/contract/older_brokers/ivy.xml",
    "kafka_lake/devstack/debezium.xml",
)


@pytest.mark.parametrize("page", ["README.md", "docs/kafka-clusters.md"])
def test_tested_versions_are_those_that_the_suite_runs(page: str) -> None:
    jars = "".join((ROOT / file).read_text() for file in _FILES)
    brokers = re.findall(r'name="kafka_2.13" rev="([^"]+)"', jars)
    java = re.findall(r'name="kafka-clients" rev="([^"]+)"', jars)[0]
    (debezium,) = re.findall(r'name="debezium-connector-postgres" rev="([0-9.]+[0-9])', jars)
    clients = [f"kafka-clients {java}", f"Debezium {debezium}"]
    client = f"librdkafka {'.'.join(version('confluent-kafka').split('.')[:2])}"
    text = (ROOT / page).read_text()
    assert [what for what in [*brokers, *clients, client] if what not in text] == []
