"""How a client logs in at a REST catalog is the same in both engines."""

from kafka_lake.catalog.catalog_properties import properties_from_environment, python_properties
from kafka_lake.orchestration.resources import CatalogResource

REST = {"type": "rest", "uri": "http://r"}
BASIC = {**REST, "auth.type": "basic", "auth.basic.username": "me", "auth.basic.password": "hush"}
OAUTH2 = {**REST, "auth.type": "oauth2", "auth.oauth2.client_id": "me", "auth.oauth2.client_secret": "hush"}


def test_pyiceberg_gets_a_log_in_nested_as_it_wants_it():
    assert python_properties(BASIC) == {
        **REST,
        "auth": {"type": "basic", "basic": {"username": "me", "password": "hush"}},
    }


def test_a_variable_s_hyphens_are_arguments_of_python(monkeypatch):
    for name, value in {"TYPE": "oauth2", "OAUTH2__CLIENT_ID": "me", "OAUTH2__TOKEN_URL": "http://t"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__AUTH__{name}", value)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "http://r")
    assert python_properties(properties_from_environment("lake"))["auth"] == {
        "type": "oauth2",
        "oauth2": {"client_id": "me", "token_url": "http://t"},
    }


def test_python_keeps_a_log_in_that_java_lacks():
    assert CatalogResource(name="lake", properties=OAUTH2).open().properties == OAUTH2
