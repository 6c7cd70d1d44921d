"""What works without the private parts of PySpark that need a JVM, and that each is there in this version."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.ingest.causes import headline
from kafka_lake.spark.compat.errors import java_trace

pytestmark = pytest.mark.integration

# A session, once more after it was stopped, and what the arguments of the JVM tell.
SESSIONS = """
import os, sys
from pathlib import Path

import psutil
from pyspark import SparkContext

from kafka_lake.common.spark_catalog import SparkCatalog
from kafka_lake.common.tested_versions import TESTED
from kafka_lake.spark.local_session import local_session

if "untested" in sys.argv:
    TESTED["pyspark"] = ("99.0", "99.1")
else:
    assert callable(SparkContext._ensure_initialized)

catalog = SparkCatalog("lake", {}, {})
settings = {"spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.my.password": "hush"}
for again in range(2):
    session = local_session(catalog, {**settings, "spark.sql.shuffle.partitions": str(again + 1)})
    assert session.range(3).count() == 3
    assert session.conf.get("spark.my.password") == "hush"
    assert session.conf.get("spark.sql.shuffle.partitions") == str(again + 1)
    assert session.sparkContext.appName == "kafka_lake"
    assert session.sparkContext.master == "local[1]"
    told = [each.as_dict(["cmdline"])["cmdline"] or [] for each in psutil.Process().children(recursive=True)]
    assert any("org.apache.spark.deploy.SparkSubmit" in each for each in told), told
    assert "hush" not in str(told)
    session.stop()
print("done")
"""


@pytest.mark.parametrize("version", ["tested", "untested"])
def test_spark_starts_and_tells_nobody_its_settings(version: str, tmp_path: Path) -> None:
    environment = {**os.environ, "KAFKA_LAKE_SPARK_MASTER": "local[1]"}
    environment.pop("SPARK_REMOTE", None)
    command = [sys.executable, "-c", SESSIONS, version]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ended.stdout == "done\n", ended.stderr[-3000:]


def test_the_stack_trace_of_java_is_known_and_nothing_depends_on_it(
    spark_resource: SparkResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark_resource.spark_session.sql("SELECT * FROM nowhere")
    error = caught.value
    assert "\tat org.apache.spark.sql." in java_trace(error)
    says = headline(error)
    monkeypatch.delattr(error, "_stackTrace")
    assert java_trace(error) == ""
    # PySpark's own text has it too, and fails without.
    monkeypatch.setattr(error, "_stackTrace", None, raising=False)
    assert headline(error) == says
