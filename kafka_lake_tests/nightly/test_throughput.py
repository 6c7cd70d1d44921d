"""An ingest needs no more CPU than when the ratio to a plain loop over the same records was last kept."""

import pytest

from benchmarks import ratio

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_ingest_needs_no_more_cpu_than_the_kept_ratio() -> None:
    found = ratio.measure(ratio.Settings(), print)
    assert found["ratio"] < ratio.WORSE * ratio.kept(), ratio.rows(found)
