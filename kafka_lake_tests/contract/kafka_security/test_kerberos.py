"""GSSAPI with a real KDC: Spark's Java client reads; Python's client says so if it was built without Kerberos.

Debian's python3-confluent-kafka has Kerberos, for Debian's Python alone. It is too old for a whole run (1.7), and shows
that librdkafka takes the properties that it is given.
"""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from kafka_lake.kafka.auth.properties import client_properties, java_properties
from kafka_lake_tests.contract.kafka_security import run_ingest
from kafka_lake_tests.contract.kafka_security.broker import SecureBroker, running_broker
from kafka_lake_tests.contract.kafka_security.certificates import Authority
from kafka_lake_tests.contract.kafka_security.kerberos import REALM, Realm, program, running_realm

pytestmark = [pytest.mark.integration, pytest.mark.contract]

VALUES = [b'{"id": %d}' % number for number in range(12)]

# In a process of its own: a JVM reads krb5.conf once.
READ = """
import json, sys
from pathlib import Path
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.orchestration.resources import SparkResource
options, folder, krb5 = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
catalog = CatalogResource(name="lake", properties={
    "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"})
java = f"-Djava.security.krb5.conf={krb5}"
spark = SparkResource(spark_config={"spark.master": "local[1]", "spark.driver.extraJavaOptions": java}, catalog=catalog)
frame = spark.spark_session.read.format("kafka").options(**options).load()
frame.selectExpr("cast(value as string) as value").write.parquet(f"{folder}/read")
spark.stop()
"""

_DEBIAN = "/usr/bin/python3"
# Without our package: Debian's Python has none of what that needs.
_CONSUME = """
import json, sys
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
consumer = Consumer({**json.loads(sys.argv[1]), "group.id": "looks", "enable.auto.commit": False})
consumer.assign([TopicPartition("orders", partition, OFFSET_BEGINNING) for partition in (0, 1)])
found = []
while len(found) < int(sys.argv[2]):
    (message,) = consumer.consume(1, timeout=30) or [None]
    assert message and not message.error(), message and message.error()
    found.append(message.value().decode())
consumer.close()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with running_realm(tmp_path_factory.mktemp("realm")) as running:
        yield running


@pytest.fixture(scope="module")
def kerberos_broker(
    realm: Realm, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecureBroker]:
    keytab, options = realm.keytab("kafka/localhost"), [f"-Djava.security.krb5.conf={realm.configuration}"]
    with running_broker(
        tmp_path_factory.mktemp("kerberos"), authority, {}, keytab=keytab, java_options=options
    ) as broker:
        broker.create("orders")
        broker.send("orders", VALUES)
        broker.grant("reader", AclOperation.READ, "orders")
        yield broker


@pytest.fixture(scope="module")
def given(realm: Realm, kerberos_broker: SecureBroker) -> dict[str, str]:
    return {
        "bootstrap.servers": kerberos_broker.address("KERBEROS"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": f"reader@{REALM}",
        "sasl.kerberos.keytab": str(realm.keytab("reader")),
        # librdkafka looks for kinit on the PATH, where one that was only unpacked isn't.
        "sasl.kerberos.kinit.cmd": f'{program("kinit")} -t "%{{sasl.kerberos.keytab}}" -k %{{sasl.kerberos.principal}}',
    }


def has_kerberos() -> bool:
    try:
        AdminClient({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT", "log_level": 0})
    except KafkaException as error:
        if "sasl.kerberos" in str(error):
            return True
        if "No provider for SASL mechanism GSSAPI" not in str(error):
            raise
        return False
    return True


def run(realm: Realm, folder: Path, *command: str, **more: str) -> str:
    environment = {**os.environ, **realm.environment, "KAFKA_LAKE_HOME": str(folder / "home"), **more}
    done = subprocess.run([sys.executable, "-c", *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_spark_reads_with_a_keytab(given: dict[str, str], realm: Realm, tmp_path: Path) -> None:
    options = {f"kafka.{name}": value for name, value in java_properties(given).items()}
    options |= {"assign": json.dumps({"orders": [0, 1]}), "startingOffsets": "earliest", "endingOffsets": "latest"}
    run(realm, tmp_path, READ, json.dumps(options), str(tmp_path), str(realm.configuration))
    read = duckdb.sql(f"select value from '{tmp_path}/read/*.parquet'").fetchall()
    assert sorted(value.encode() for (value,) in read) == sorted(VALUES)


def test_a_whole_ingest_or_how_to_get_a_client_that_can(given: dict[str, str], realm: Realm, tmp_path: Path) -> None:
    """Wheels of confluent-kafka have no Kerberos; with one that was built with it, all of a run is shown."""
    variables = {f"KAFKA_LAKE_KAFKA_{name.upper().replace('.', '_')}": value for name, value in given.items()}
    if has_kerberos():
        conf = json.dumps({"spark.driver.extraJavaOptions": f"-Djava.security.krb5.conf={realm.configuration}"})
        script = inspect.getsource(run_ingest)
        reported = run(realm, tmp_path, script, "orders", str(tmp_path), conf, **variables)
        assert "rows: 12" in reported
        rows = duckdb.sql(f"select id from '{tmp_path}/warehouse/**/*.parquet'").fetchall()
        assert sorted(number for (number,) in rows) == list(range(12))
    else:
        doctor = "from kafka_lake.cli.commands.doctor import check_all\n"
        doctor += "print(*[d for d in check_all(lambda _: None) if d.part == 'Brokers'])"
        reported = run(realm, tmp_path, doctor, **variables)
        assert "passed=False" in reported
        assert "No provider for SASL mechanism GSSAPI" in reported
        assert "pip install --no-binary confluent-kafka" in reported


def test_python_s_client_consumes_with_the_same_properties(
    given: dict[str, str], realm: Realm, kerberos_broker: SecureBroker
) -> None:
    if subprocess.run([_DEBIAN, "-I", "-c", "import confluent_kafka"], capture_output=True).returncode:
        pytest.skip(f"{_DEBIAN} has no confluent_kafka. Debian: python3-confluent-kafka, libsasl2-modules-gssapi-mit")
    kerberos_broker.grant("reader", AclOperation.READ, "looks", ResourceType.GROUP)
    command = [_DEBIAN, "-I", "-c", _CONSUME, json.dumps(client_properties(given)), str(len(VALUES))]
    done = subprocess.run(command, env={**os.environ, **realm.environment}, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(value.encode() for value in json.loads(done.stdout)) == sorted(VALUES)
