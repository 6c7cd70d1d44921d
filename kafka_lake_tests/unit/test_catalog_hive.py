"""How a client logs in at a Hive Metastore is the same in both engines, or refused."""

import pytest

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.catalog import LakeCatalog

HIVE = {"type": "hive", "uri": "thrift://hms:9083", "warehouse": "hdfs:///w"}
KERBEROS = {**HIVE, "hive.kerberos-authentication": "yes"}
PRINCIPAL = "hadoop.hive.metastore.kerberos.principal"


def spark(properties):
    conf = LakeCatalog("lake", properties).spark_conf()
    told = {key.removeprefix("spark.sql.catalog.lake."): value for key, value in conf.items()}
    return {key: value for key, value in told.items() if "hive" in key or key == "ugi"}


def test_kerberos_reaches_java_with_the_metastore_s_principal():
    assert spark({**KERBEROS, PRINCIPAL: "hive/_HOST@ACME.COM"}) == {
        PRINCIPAL: "hive/_HOST@ACME.COM",
        "hadoop.hive.metastore.sasl.enabled": "true",
    }
    assert spark({**KERBEROS, "hive.kerberos-service-name": "hms", PRINCIPAL: "hms/h@A"})[PRINCIPAL] == "hms/h@A"


def test_without_kerberos_nothing_is_told_of_it():
    assert spark({**HIVE, "hive.kerberos-authentication": "off", "hive.kerberos-service-name": "hms"}) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (KERBEROS, f"{PRINCIPAL} is not set"),
        ({**KERBEROS, "hive.kerberos-service-name": "hms", PRINCIPAL: "hive/_HOST@A"}, "another service than hms"),
        ({**HIVE, "ugi": "bob:staff"}, "Spark can't be told ugi"),
    ],
)
def test_a_log_in_that_java_can_not_be_told_is_refused(given, said):
    with pytest.raises(ConfigurationError, match=said) as refused:
        spark(given)
    assert refused.value.remedy
