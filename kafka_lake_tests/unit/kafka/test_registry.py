"""How the environment and the resource make a registry client: names, numbers, credentials; nobody is asked here."""

import pytest

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.registry import SchemaRegistry, properties_from_env
from kafka_lake.orchestration.resources import RegistryResource

SECRET = "s3cr3t-never-shown"


def test_variables_become_properties():
    found = properties_from_env(
        {
            "KAFKA_LAKE_SCHEMA_REGISTRY_URL": "https://registry:8081",
            "KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO": "bob:pw",
            "KAFKA_LAKE_REGISTRY_SSL_CA_LOCATION": "/ca.pem",
            "KAFKA_LAKE_REGISTRY_SSL_KEY_LOCATION": "",
            "KAFKA_LAKE_REGISTRY_PORT": "19095",
            "KAFKA_LAKE_KAFKA_SASL_PASSWORD": "pw",
        }
    )
    assert found == {
        "url": "https://registry:8081",
        "basic.auth.user.info": "bob:pw",
        "ssl.ca.location": "/ca.pem",
    }


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, {}),
        ({"KAFKA_LAKE_SCHEMA_REGISTRY_URL": ""}, {}),
        ({"KAFKA_LAKE_REGISTRY_URL": "http://a"}, {"url": "http://a"}),
        ({"KAFKA_LAKE_REGISTRY_URL": "http://a", "KAFKA_LAKE_SCHEMA_REGISTRY_URL": "http://b"}, {"url": "http://b"}),
    ],
)
def test_the_address(environ, found):
    assert properties_from_env(environ) == found


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8081", "http://127.0.0.1:8081"),
        ("https://registry/apis/ccompat/v7/", "https://registry/apis/ccompat/v7"),
        ("http://a:1, http://b:2/", "http://a:1,http://b:2"),
        (f"http://[::1]:8081?token={SECRET}", "http://[::1]:8081"),
    ],
)
def test_addresses_show_no_query(url, shown):
    registry = SchemaRegistry({"url": url})
    assert registry.url == shown
    assert repr(registry) == f"SchemaRegistry({shown!r})"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry:8081",
        "ftp://registry",
        f"https://bob:{SECRET}@registry:8081/x",
        f"http://a,https://{SECRET}@registry",
        f"bob:{SECRET}@registry:8081",
        f"http://bob:{SECRET}/@registry:8081",
        f"http://bob:{SECRET},@registry:8081",
        f"http://bob:{SECRET}@registry:none",
        "http://a,",
    ],
)
def test_what_is_no_address_is_refused_without_its_password(url):
    with pytest.raises(ConfigurationError, match="KAFKA_LAKE_SCHEMA_REGISTRY_URL") as refused:
        SchemaRegistry({"url": url})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"url": "https://registry"}, "confluent"),
        ({"url": "https://registry/apis/ccompat/v7"}, "apicurio"),
        # Behind a proxy with paths of its own.
        ({"url": "https://registry", "apicurio.use.id": "contentId"}, "apicurio"),
        ({"url": "glue://eu-west-1"}, "glue"),
    ],
)
def test_the_address_says_whose_registry_it_is(properties, kind):
    assert RegistryResource(properties=properties).registry().kind == kind


@pytest.mark.parametrize("given", ["nan", "inf", "-1", "x", None])
def test_a_number_that_no_client_could_use_is_refused(given):
    with pytest.raises(ConfigurationError, match=r"timeout is .*, which is not a number of at least 0"):
        SchemaRegistry({"url": "http://a", "timeout": given})


def test_a_number_that_is_none_is_named():
    with pytest.raises(ConfigurationError, match=r"max\.retries is many"):
        SchemaRegistry({"url": "http://a", "max.retries": "many"})


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"ssl.ca.location": "/nowhere.pem"}, "ssl.ca.location is /nowhere.pem"),
        ({"ssl.certificate.location": "/nowhere.pem"}, "ssl.certificate.location is /nowhere.pem"),
        ({"ssl.ca.location": __file__}, "can't be created"),
        ({"basic.auth.user.info": SECRET}, "basic.auth.user.info must be in the form"),
        ({"basic.user.info": f"bob:{SECRET}"}, "basic.user.info"),
        ({"bearer.auth.credentials.source": SECRET, "bearer.auth.token": SECRET}, "Unrecognized bearer"),
    ],
)
def test_properties_that_make_no_client_are_named_once_it_is_needed(properties, named):
    registry = SchemaRegistry({"url": "http://127.0.0.1:1", **properties})
    with pytest.raises(ConfigurationError) as refused:
        registry.by_id(1)
    assert named in str(refused.value)
    assert "KAFKA_LAKE_REGISTRY_" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_resource_reads_the_environment_late_and_shows_no_secret(monkeypatch):
    resource = RegistryResource(properties={"max.retries": "0"})
    monkeypatch.delenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", raising=False)
    assert resource.registry() is None
    monkeypatch.setenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO", f"bob:{SECRET}")
    registry = resource.registry()
    assert registry is not None
    assert registry.url == "http://127.0.0.1:1"
    assert SECRET not in repr(resource) + str(resource) + resource.model_dump_json() + repr(registry)


def test_properties_of_a_resource_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", "http://environment")
    registry = RegistryResource(properties={"url": "http://given"}).registry()
    assert registry is not None
    assert registry.url == "http://given"
