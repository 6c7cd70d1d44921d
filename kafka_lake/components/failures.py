"""Errors as Dagster shows them: the sentence for the user first, the trace behind it."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from kafka_lake.common.log_format import log_as_the_environment_says
from kafka_lake.common.redaction import error_without_secrets
from kafka_lake.errors import AuditFailedError
from kafka_lake.ingest.causes import sentence
from kafka_lake.ingest.topic_runner import LeftBehindError


class SensorFailedError(dg.DagsterError):
    """A look at the topics failed; the message says why. Dagster shows errors of its own kind without a preface."""


@contextmanager
def as_failures(allow_retries: bool = True) -> Iterator[None]:
    """Run the block, which is the body of an op; what a user can fix fails the step with its sentence.

    What runs log goes to standard error from then on, if the environment says so.

    Args:
        allow_retries: Whether Dagster may try the step again; never if a gate refused a commit.

    Raises:
        Failure: With the sentence, and the error as its cause.
    """
    log_as_the_environment_says()
    try:
        yield
    except Exception as error:
        # Dagster keeps all that an error tells, its causes included.
        cause = error_without_secrets(error)
        if (told := sentence(error)) is None:
            raise cause from (error.__cause__ if cause is error else None)
        errors = error.errors.values() if isinstance(error, LeftBehindError) else (error,)
        again = allow_retries and not all(isinstance(each, AuditFailedError) for each in errors)
        raise dg.Failure(description=told, allow_retries=again) from cause


@contextmanager
def as_failed_tick() -> Iterator[None]:
    """Run the block, which is the body of a sensor; what a user can fix fails the tick with its sentence.

    Raises:
        SensorFailedError: With the sentence, and the error as its cause.
    """
    try:
        yield
    except Exception as error:
        cause = error_without_secrets(error)
        if (told := sentence(error)) is None:
            raise cause from (error.__cause__ if cause is error else None)
        raise SensorFailedError(told) from cause
