"""By whom a topic's rows are written: by Arrow, as most are, or by Spark, as after a transform."""

from typing import Any


def by(arrow: bool) -> dict[str, Any]:
    """Return settings by which rows are written so."""
    return {} if arrow else {"transform": "kafka_lake_tests.integration.transforms:unchanged"}
