"""No secret of any way to authenticate shows: in a log at its most talkative, Spark's event log, files or arguments."""

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from confluent_kafka.admin import AclOperation

from kafka_lake_tests.contract.kafka_security import run_ingest
from kafka_lake_tests.contract.kafka_security.broker import SecureBroker
from kafka_lake_tests.contract.kafka_security.modes import Clients
from kafka_lake_tests.e2e.test_secrets import Watch

pytestmark = [pytest.mark.integration, pytest.mark.contract, pytest.mark.timeout(900)]


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize(
    "name",
    ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "mTLS encrypted", "mTLS inline", "mTLS PKCS12"],
)
def test_a_run_keeps_its_secrets(
    name: str, right: bool, topic: str, clients: Clients, secure_broker: SecureBroker, tmp_path: Path
) -> None:
    mode = clients[name]
    assert mode.principal
    secure_broker.send(topic, [b'{"id": 1}', b'{"id": 2}'])
    # With a right to describe alone, the run fails before Spark reads.
    secure_broker.grant(mode.principal, AclOperation.READ if right else AclOperation.DESCRIBE, topic)
    (tmp_path / "events").mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{tmp_path / 'events'}",
        "spark.log.level": "INFO",
    }
    variables = {f"KAFKA_LAKE_KAFKA_{key.upper().replace('.', '_')}": value for key, value in mode.properties.items()}
    environment = {**os.environ, **variables, "KAFKA_LAKE_HOME": str(tmp_path / "home")}
    environment.pop("SPARK_REMOTE", None)
    command = [sys.executable, "-m", run_ingest.__name__, topic, str(tmp_path), json.dumps(conf)]
    with Watch(tmp_path) as watch:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    reported = done.stdout + done.stderr
    (tmp_path / "told").write_text(reported)
    events = "".join(file.read_text(errors="replace") for file in (tmp_path / "events").rglob("events_*"))
    if right:
        assert "rows: 2" in reported, reported
        rows = duckdb.sql(f"select id from '{tmp_path}/warehouse/**/*.parquet'").fetchall()
        assert sorted(number for (number,) in rows) == [1, 2]
    else:
        assert f"doesn't allow READ on topic {topic}" in reported, reported
    assert ("SparkListenerJobStart" in events) is right
    assert watch.found == set()
    keys = [line for line in clients.private_lines if line in reported + events]
    assert (keys, "hush" in reported, "hush" in events) == ([], False, False)
