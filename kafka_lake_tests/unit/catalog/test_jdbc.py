"""The address of an SQL catalog's database becomes that of JDBC, or is refused without its secrets."""

import pytest

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.errors import ConfigurationError

PREFIX = "spark.sql.catalog.lake."


def spark(properties):
    conf = LakeCatalog("lake", properties).spark_conf()
    return {k.removeprefix(PREFIX): v for k, v in conf.items() if k.startswith(PREFIX) and "cache" not in k}


POSTGRES = {"type": "sql", "warehouse": "file:///w"}


@pytest.mark.parametrize(
    ("uri", "reported"),
    [
        (
            "postgresql+psycopg2://bob:p%40ss%2Fword@db:5432/lake",
            {"uri": "jdbc:postgresql://db:5432/lake", "jdbc.user": "bob", "jdbc.password": "p@ss/word"},
        ),
        (
            "postgresql://db/lake?user=bob&password=pw&sslmode=verify-full&sslrootcert=/ca.pem&connect_timeout=5",
            {
                "uri": "jdbc:postgresql://db/lake",
                "jdbc.user": "bob",
                "jdbc.password": "pw",
                "jdbc.sslmode": "verify-full",
                "jdbc.sslrootcert": "/ca.pem",
                "jdbc.connectTimeout": "5",
            },
        ),
        (
            "postgresql://db/lake?sslmode=require&channel_binding=require",
            {"uri": "jdbc:postgresql://db/lake", "jdbc.sslmode": "require", "jdbc.channelBinding": "require"},
        ),
        ("postgresql+psycopg2://[::1]:5432/lake", {"uri": "jdbc:postgresql://[::1]:5432/lake"}),
        ("postgresql://db/lake?keepalives_idle=30&tcp_user_timeout=9", {"uri": "jdbc:postgresql://db/lake"}),
    ],
)
def test_the_address_of_a_database_reaches_jdbc_with_its_user_and_password_apart(uri, reported):
    conf = spark({**POSTGRES, "uri": uri})
    assert conf == {"type": "jdbc", "jdbc.schema-version": "V1", "warehouse": "file:///w", **reported}


def test_what_is_given_in_jdbc_s_names_wins():
    given = {"uri": "postgresql://bob:pw@db/lake", "jdbc.user": "spark", "jdbc.ApplicationName": "x"}
    conf = spark({**POSTGRES, **given})
    assert (conf["jdbc.user"], conf["jdbc.password"], conf["jdbc.ApplicationName"]) == ("spark", "pw", "x")


def test_sqlite_is_the_same_file_wherever_spark_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    uri = spark({**POSTGRES, "uri": "sqlite+pysqlite:///c.db"})["uri"]
    assert uri == f"jdbc:sqlite:{tmp_path}/c.db?busy_timeout=30000"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("postgresql+psycopg2:///lake?host=/var/run", "names no host"),
        ("postgresql+psycopg2://hush:hush@/lake", "names no host"),
        ("mysql+pymysql://hush:hush@db/lake", "database mysql isn't supported"),
        ("sqlite://", "isn't a file"),
        ("no address hush", "is not a URL"),
        ("postgresql://me:hush@h1:5432,h2:5432/lake", "is not a URL"),
        ("sqlite:///file:/data/hush.db?uri=true", "isn't a file"),
    ],
)
def test_an_address_that_spark_can_not_be_told_is_refused_without_its_secrets(uri, said):
    catalog = LakeCatalog("lake", {**POSTGRES, "uri": uri})
    with pytest.raises(ConfigurationError) as refused:
        catalog.spark_conf()
    assert said in refused.value.message
    assert refused.value.remedy
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "reported"),
    [
        ("h/my%20db", "jdbc:postgresql://h/my%20db"),
        ("h/a+b", "jdbc:postgresql://h/a%2Bb"),
        ("h/a%2Fb%25", "jdbc:postgresql://h/a%2Fb%25"),
        ("h1,h2/lake", "jdbc:postgresql://h1,h2/lake"),
        # For libpq one port counts for all hosts, in JDBC for the last.
        ("h1,h2:5433/lake", "jdbc:postgresql://h1:5433,h2:5433/lake"),
    ],
)
def test_names_and_hosts_are_what_the_java_driver_takes_for_the_same(address, reported):
    assert spark({**POSTGRES, "uri": f"postgresql://{address}"})["uri"] == reported


def test_a_key_for_tls_may_be_given_for_java_apart():
    uri = "postgresql://db/lake?sslcert=/c.pem&sslkey=/k.pem"
    conf = spark({**POSTGRES, "uri": uri, "jdbc.sslkey": "/k.pk8"})
    assert (conf["jdbc.sslcert"], conf["jdbc.sslkey"]) == ("/c.pem", "/k.pk8")


@pytest.mark.parametrize("file", ["a b.db", "a%2520b.db", "a#b.db", "a+b.db"])
def test_an_sqlite_file_is_the_same_for_both_engines(file, tmp_path):
    catalog = LakeCatalog(
        "lake", {**POSTGRES, "uri": f"sqlite:///{tmp_path}/{file}", "warehouse": f"file://{tmp_path}"}
    )
    assert catalog.check() == 0
    (made,) = tmp_path.glob("*.db")
    assert catalog.sqlite_address() == f"jdbc:sqlite:{made}?busy_timeout=30000"


def test_relative_paths_are_absolute_for_both_engines(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    catalog = LakeCatalog("lake", {"type": "sql", "uri": "sqlite:///db/c.db", "warehouse": "tables"})
    assert catalog.properties["uri"] == f"sqlite:///{tmp_path}/db/c.db"
    assert catalog.properties["warehouse"] == f"file://{tmp_path}/tables"
    assert catalog.check() == 0
    assert (tmp_path / "db" / "c.db").exists()
    assert (tmp_path / "tables").is_dir()


@pytest.mark.parametrize("warehouse", ["file://./tables", "file://tables", "file://localhost/tables"])
def test_a_folder_that_each_engine_would_look_for_elsewhere_is_refused(warehouse):
    with pytest.raises(ConfigurationError, match="to different folders") as refused:
        LakeCatalog("lake", {"type": "sql", "uri": "sqlite:////x/c.db", "warehouse": warehouse})
    assert "PYICEBERG_CATALOG__LAKE__WAREHOUSE" in refused.value.remedy


@pytest.mark.parametrize(("kind", "warehouse"), [("sql", "/a#b"), ("sql", "file:///a?b"), ("rest", "file:///a#b")])
def test_a_folder_whose_name_pyiceberg_would_cut_is_refused(kind, warehouse):
    uri = {"sql": "sqlite:////x.db", "rest": "http://r"}[kind]
    with pytest.raises(ConfigurationError, match="to different folders"):
        LakeCatalog("lake", {"type": kind, "uri": uri, "warehouse": warehouse})


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("http://r", "rest"),
        ("https://r", "rest"),
        ("thrift://hms:9083", "hive"),
        ("postgresql+psycopg2://db/lake", "sql"),
        ("sqlite:////x.db", "sql"),
    ],
)
def test_an_address_without_a_type_is_of_the_type_that_pyiceberg_takes_it_for(uri, kind):
    assert LakeCatalog("lake", {"uri": uri, "warehouse": "file:///w"}).type == kind


def test_an_address_that_tells_no_type_is_refused_without_its_password():
    with pytest.raises(ConfigurationError, match="type can't be inferred") as refused:
        LakeCatalog("lake", {"uri": "mysql+pymysql://me:hush@db/lake", "warehouse": "file:///w"})
    assert "PYICEBERG_CATALOG__LAKE__TYPE" in refused.value.remedy
    assert "hush" not in str(refused.value)
