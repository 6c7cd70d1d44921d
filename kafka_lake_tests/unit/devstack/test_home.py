"""The folder of local state is for its owner alone, whatever makes it first."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_lake.common.files import dagster_home, ensure_home
from kafka_lake.devstack.running import Ports
from kafka_lake.devstack.stack import Stack
from kafka_lake.orchestration.resources import CatalogResource

OTHERS = 0o077


def _start_stack() -> None:
    with Stack(Ports.from_env(), lambda line: None):
        pass


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / ".kafka_lake"
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(folder))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    return folder


MAKERS: dict[str, Callable[[], object]] = {
    "home": ensure_home,
    "dagster": dagster_home,
    "stack": _start_stack,
    "catalog": lambda: CatalogResource().open().table(("lake", "orders")),
}


@pytest.mark.parametrize("name", MAKERS)
def test_new_home_is_for_its_owner_alone(name: str, folder: Path) -> None:
    MAKERS[name]()
    assert folder.stat().st_mode & OTHERS == 0


def test_folder_that_a_user_named_keeps_its_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o750)
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(folder))
    ensure_home()
    assert folder.stat().st_mode & 0o777 == 0o750
