"""How functions travel to tasks, and what a worker is spared after the first of them."""

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

WORKER = """
import gc, pickle, sys
sys.path.insert(0, sys.argv[1])
from pyspark import cloudpickle
from kafka_lake.engine.task.packing import unpacking

assert "pyspark.zip" in cloudpickle.__file__
zips = lambda: [path for path in sys.path_importer_cache if "pyspark.zip" in path]
before = gc.get_freeze_count(), bool(zips())
task = unpacking(cloudpickle.dumps(lambda told: lambda batches: [told["number"]]), pickle.dumps({"number": 4}))
print(before, task([]), gc.get_freeze_count() > 5_000, zips())
"""


@pytest.mark.processes
def test_worker_of_sparks_own_daemon_settles_at_first_task() -> None:
    zipped = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(zipped)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "(0, True) [4] True []\n"
