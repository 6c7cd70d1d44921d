"""What all steps share: errors as Dagster shows them, and run configuration that can't read variables."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import dagster as dg

from kafka_lake.common.logs import error_without_secrets, log_as_the_environment_says, without_secret_values
from kafka_lake.common.text import block
from kafka_lake.errors import AuditFailedError, KafkaLakeError


class SensorFailedError(dg.DagsterError):
    """An evaluation of the sensor failed. Dagster shows errors of its own kind without a preface."""


@contextmanager
def as_failures(allow_retries: bool = True) -> Iterator[None]:
    """Run the block, which is the body of an op; what a user can fix fails the step with its sentence.

    What runs log goes to standard error from then on, if the environment says so.
    """
    log_as_the_environment_says()
    try:
        yield
    except Exception as error:
        from kafka_lake.error_classification import user_message
        from kafka_lake.ingest.topic_runner import LeftBehindError

        # Dagster keeps all that an error tells, its causes included.
        cause = error_without_secrets(error)
        if (explanation := user_message(error)) is None:
            raise cause from (error.__cause__ if cause is error else None)
        errors = error.errors.values() if isinstance(error, LeftBehindError) else (error,)
        again = allow_retries and not all(isinstance(cause, AuditFailedError) for cause in errors)
        raise dg.Failure(
            description=explanation, metadata=_what_to_do(error, explanation), allow_retries=again
        ) from cause


_COMMAND = re.compile(r"`((?:kafka-lake|dg|dagster) [^`]+)`")


def _what_to_do(error: Exception, explanation: str) -> dict[str, dg.MetadataValue[Any]]:
    """Return what to do next: the commands that the message names, to be copied, or its last sentences."""
    if commands := dict.fromkeys(_COMMAND.findall(explanation)):
        return {"what_to_do": dg.MetadataValue.md(block("\n".join(commands), "sh"))}
    remedy = without_secret_values(error.remedy) if isinstance(error, KafkaLakeError) else ""
    return {"what_to_do": dg.MetadataValue.text(remedy)} if remedy else {}


@contextmanager
def as_failed_tick() -> Iterator[None]:
    """Run the block, which is the body of a sensor; what a user can fix fails the tick with its sentence."""
    try:
        yield
    except Exception as error:
        from kafka_lake.error_classification import user_message

        cause = error_without_secrets(error)
        if (explanation := user_message(error)) is None:
            raise cause from (error.__cause__ if cause is error else None)
        raise SensorFailedError(explanation) from cause


@cache
def run_choices(config: type[dg.Config]) -> dict[str, dg.Field]:
    """Return the configuration schema of a step: the fields of a class, none of which may name a variable.

    Dagster's own schema of the class would take ``{env: NAME}`` for a text, and whoever may launch a run would read the
    deployment's environment in the run's errors. Dagster refuses that before a run starts.
    """
    return {name: _plain(field) for name, field in config.to_fields_dict().items()}


def _plain(field: dg.Field) -> dg.Field:
    kind: Any = field.config_type
    plain = dg.Noneable(_scalar(kind.inner_type)) if isinstance(kind, dg.Noneable) else _scalar(kind)
    default = {"default_value": field.default_value} if field.default_provided else {}
    return dg.Field(plain, description=field.description, is_required=field.is_required, **default)


def _scalar(kind: Any) -> Any:
    return kind.scalar_type if isinstance(kind, dg.ScalarUnion) else kind
