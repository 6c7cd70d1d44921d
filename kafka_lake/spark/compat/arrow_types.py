"""Spark's types as Arrow's, and the other way round.

Not documented: ``pyspark.sql.pandas.types``, by which PySpark makes data frames of Arrow tables, and the other way
round. What is documented needs a session and rows for it. There is no way without: a PySpark that lacks it is refused.
"""

from importlib.metadata import version

from kafka_lake.common.tested_versions import TESTED
from kafka_lake.errors import ConfigurationError

try:
    from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
except ImportError as error:
    raise ConfigurationError(
        f"PySpark {version('pyspark')} lacks what kafka_lake needs to tell Spark's types from Arrow's: {error}.",
        f"Install pyspark>={TESTED['pyspark'][0]},<{TESTED['pyspark'][1]}.",
    ) from error

__all__ = ["from_arrow_schema", "from_arrow_type", "to_arrow_schema"]
