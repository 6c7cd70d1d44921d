"""What is wrong with PyIceberg's own configuration is told by file and line, never by its content."""

import os
import subprocess
import sys

import pytest

from kafka_lake.catalog.catalog_properties import properties_from_environment
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.errors import ConfigurationError

CATALOG = "catalog:\n  lake:\n    uri: https://c\n"
WRONG = {
    "a repeated name": (CATALOG + "    credential: id:hush\n    credential: id:hush\n", "line 5"),
    "a mapping in braces": (CATALOG + "    credential: {id: hush}\n", "line 4"),
    "an open quote": (CATALOG + '    credential: "id:hush\n', "line 4"),
    "a tab": (CATALOG + "\tcredential: id:hush\n", "line 4"),
    "text alone": ("hush\n", "can't be read as"),
    "a catalog that is text": ("catalog:\n  lake: hush\n", "can't be read as"),
    "catalogs that are text": ("catalog: hush\n", "can't be read as"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_named_with_the_line_and_without_its_content(case, monkeypatch, tmp_path):
    text, said = WRONG[case]
    (tmp_path / ".pyiceberg.yaml").write_text(text)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError) as refused:
        properties_from_environment("lake")
    assert str(tmp_path / ".pyiceberg.yaml") in refused.value.message
    assert said in refused.value.message
    assert refused.value.remedy
    assert refused.value.__cause__ is refused.value.__context__ is None
    assert "hush" not in str(refused.value)


def test_a_file_that_is_not_utf_8_is_named(monkeypatch, tmp_path):
    (tmp_path / ".pyiceberg.yaml").write_bytes(b"catalog: \xff")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"yaml can't be read as .*UnicodeDecodeError"):
        properties_from_environment("lake")


@pytest.mark.parametrize("variable", ["PYICEBERG_CATALOG", "PYICEBERG_CATALOG__LAKE"])
def test_a_variable_that_names_no_property_is_named_without_its_value(variable, monkeypatch):
    for name in [item for item in os.environ if item.upper().startswith("PYICEBERG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(variable, "hush")
    with pytest.raises(
        ConfigurationError, match=f"variable {variable} doesn't name a catalog and a property"
    ) as refused:
        properties_from_environment("lake")
    assert "hush" not in str(refused.value)


def test_wrong_variable_is_named_at_import_without_a_password():
    # In this order: PyIceberg's error shows the second one's value.
    variables = {"PYICEBERG_CATALOG": "lake", "PYICEBERG_CATALOG__LAKE__CREDENTIAL": "id:hush"}
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYICEBERG")}
    done = subprocess.run(
        [sys.executable, "-c", "import kafka_lake.catalog.lake_catalog"],
        env={**others, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    assert (
        "ConfigurationError: The environment variable PYICEBERG_CATALOG doesn't name a catalog and a property"
        in done.stderr
    )
    assert "hush" not in done.stderr


@pytest.mark.parametrize("folder", ["a b", "a%20b", "a+b", "ä"])
def test_the_embedded_catalog_may_be_in_any_folder_that_both_engines_can_have(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / folder))
    catalog = LakeCatalog("lake", properties_from_environment("lake"))
    assert catalog.check() == 0
    assert (tmp_path / folder / "catalog.db").exists()
    assert catalog.sqlite_address() == f"jdbc:sqlite:{tmp_path / folder}/catalog.db?busy_timeout=30000"
    # As a text, for both: neither decodes it.
    assert catalog.properties["warehouse"] == f"file://{tmp_path / folder}/warehouse"
    assert (tmp_path / folder / "warehouse").is_dir()


@pytest.mark.parametrize("folder", ["a#b", "a?b"])
def test_a_folder_for_the_embedded_catalog_that_pyiceberg_can_not_have_is_refused(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / folder))
    with pytest.raises(ConfigurationError, match="KAFKA_LAKE_HOME"):
        LakeCatalog("lake", properties_from_environment("lake"))
