"""What Trino finds in each kind of table; it needs a download of 800 MB."""

from collections.abc import Callable, Iterator

import pytest

from kafka_lake.runtime.context import Connections
from kafka_lake_tests.conftest import Topic
from kafka_lake_tests.contract.test_readers import KINDS, check
from kafka_lake_tests.contract.trino import Trino

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def trino(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trino]:
    with Trino(tmp_path_factory.mktemp("trino")) as running:
        yield running


@pytest.mark.parametrize("kind", KINDS)
def test_trino_finds_what_the_page_says(
    kind: str, trino: Trino, new_topic: Callable[..., Topic], connections: Callable[[], Connections]
) -> None:
    check(kind, {"Trino": trino.read}, new_topic(2), connections)
