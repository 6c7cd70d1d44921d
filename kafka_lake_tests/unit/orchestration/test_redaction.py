"""What is shown or kept of errors has no secret, whatever the error is and however deep the secret lies."""

import io
import logging
import traceback
from typing import NoReturn

import dagster as dg
import pytest

from kafka_lake.common.logs import (
    JsonFormatter,
    RedactedError,
    error_without_secrets,
    without_secret_values,
    without_secrets,
)
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.run import RunLog, log
from kafka_lake.orchestration.steps import SensorFailedError, as_failed_tick, as_failures

SECRET = "open-sesame"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DB_PASSWORD", SECRET)


def _fail(error: type[Exception] = ValueError) -> NoReturn:
    try:
        raise ValueError(f"[CAST_INVALID_INPUT] The value '{SECRET}' can't be cast")
    except ValueError as cause:
        if error is ValueError:
            raise
        raise error(f"where: is no condition: {SECRET}", "Mend it.") from cause


@pytest.mark.parametrize(
    ("variables", "hidden"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "abcdef/123"}, "abcdef/123"),
        ({"KAFKA_LAKE_KAFKA_SASL_PASSWORD": "s3cr3t"}, "s3cr3t"),
        ({"PYICEBERG_CATALOG__LAKE__CREDENTIAL": "me:hush-hush"}, "me:hush-hush"),
        ({"DATABASE": "postgresql://me:hush-hush@db/lake"}, "hush-hush"),
        ({"SPARK_REMOTE": "sc://localhost:15002/;token=t0ken-t0ken"}, "t0ken-t0ken"),
    ],
)
def test_value_of_secret_variable_is_redacted(variables: dict[str, str], hidden: str) -> None:
    text = f"Java said {hidden!r}, twice {hidden}"
    assert without_secret_values(text, variables) == "Java said '***', twice ***"


def test_text_without_secrets_stays_as_it_is() -> None:
    variables = {"A_TOKEN": "true", "OAUTH_TOKEN_ENDPOINT_URL": "https://idp.example/token", "HOME": "/home/me"}
    text = "true at https://idp.example/token in /home/me"
    assert without_secrets(text, variables) == text


def test_error_without_secret_is_the_same_error() -> None:
    error = ValueError("nothing to hide")
    assert error_without_secrets(error) is error


@pytest.mark.parametrize("kind", [ValueError, ConfigurationError])
def test_cause_of_error_has_no_secret(kind: type[Exception]) -> None:
    with pytest.raises(Exception) as raised:
        _fail(kind)
    reported = error_without_secrets(raised.value)
    assert isinstance(reported, RedactedError)
    text = "".join(traceback.format_exception(reported))
    assert SECRET not in text
    assert "CAST_INVALID_INPUT" in text


@pytest.mark.parametrize("kind", [ValueError, ConfigurationError])
def test_what_dagster_keeps_of_a_failed_step_has_no_secret(kind: type[Exception]) -> None:
    @dg.op
    def fails() -> None:
        with as_failures():
            _fail(kind)

    @dg.job
    def job() -> None:
        fails()

    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(instance=instance, raise_on_error=False)
        kept = [str(entry) for entry in instance.all_logs(done.run_id)]
    assert not done.success
    assert any("CAST_INVALID_INPUT" in text for text in kept)
    assert not [text for text in kept if SECRET in text]


@pytest.mark.parametrize(("kind", "shown"), [(ValueError, RedactedError), (ConfigurationError, SensorFailedError)])
def test_failed_tick_has_no_secret(kind: type[Exception], shown: type[Exception]) -> None:
    with pytest.raises(shown) as raised, as_failed_tick():
        _fail(kind)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("kind", [ValueError, ConfigurationError])
def test_log_of_a_failed_run_has_no_secret(kind: type[Exception]) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    log.addHandler(handler)
    try:
        with pytest.raises(Exception) as raised:
            _fail(kind)
        RunLog("lake.orders", "run-1").failed(raised.value)
    finally:
        log.removeHandler(handler)
    assert "***" in stream.getvalue()
    assert SECRET not in stream.getvalue()
