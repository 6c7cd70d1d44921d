"""Traces for OpenTelemetry: a span for each commit, with one for each of its steps.

They go where OpenTelemetry's own environment variables say, or to the tracer that the program has set up before. If its
packages aren't installed (``pip install 'kafka-lake[otel]'``) there are none. Names of messaging attributes are those
of its semantic conventions, https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from kafka_lake.ingest.causes import without_data
from kafka_lake.ingest.commit import Commit
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.effort import Step

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""OpenTelemetry's variables that say where traces go; without both, nothing is sent."""
_FLUSH_MS = 5_000
_NOT_INSTALLED = "Traces are asked for by the environment, and not sent: pip install 'kafka-lake[otel]'"


def trace_commit(context: Context, commit: Commit) -> None:
    """Tell of a commit that was made.

    Args:
        context: Of the run; its effort is asked for the steps.
    """
    steps = context.effort.take_steps()
    if (tracer := _tracer()) is None:
        return
    figures = {
        "messaging.batch.message_count": commit.records,
        "kafka_lake.snapshot": str(commit.snapshot),
        "kafka_lake.kind": commit.kind,
        "kafka_lake.rows": commit.rows,
        "kafka_lake.dead_letters": commit.dead_letters,
        "kafka_lake.tombstones": commit.tombstones,
        "kafka_lake.files": commit.files,
        "kafka_lake.bytes": commit.size,
    }
    _spans(tracer, context, steps, figures)


def trace_failure(context: Context, error: Exception) -> None:
    """Tell of a commit that failed; what becomes of the run is decided by others.

    Args:
        context: Of the run; its effort is asked for the steps that were done.
        error: Why it failed. Its text is told if it is an error of ours, which quotes neither data nor secrets.
    """
    steps = context.effort.take_steps()
    if (tracer := _tracer()) is not None:
        _spans(tracer, context, steps, {"error.type": type(error).__qualname__}, error=error)
        flush()


def flush() -> None:
    """Send what is yet to be sent, for up to five seconds: a process may end without asking for it."""
    if _tracer() is None:
        return
    from opentelemetry import trace

    if (force_flush := getattr(trace.get_tracer_provider(), "force_flush", None)) is not None:
        force_flush(_FLUSH_MS)


def _spans(
    tracer: Any, context: Context, steps: Sequence[Step], told: Mapping[str, Any], error: Exception | None = None
) -> None:
    from opentelemetry import trace

    if not steps:
        return
    spec = context.spec
    attributes = {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.destination.name": spec.topic,
        "kafka_lake.table": context.table_name,
        "kafka_lake.run_id": context.run_id,
        **told,
    }
    span = tracer.start_span(
        f"process {spec.topic}", kind=trace.SpanKind.CONSUMER, attributes=attributes, start_time=steps[0].began
    )
    inside = trace.set_span_in_context(span)
    for step in steps:
        tracer.start_span(step.name, context=inside, start_time=step.began).end(step.ended)
    if error is not None:
        span.set_status(trace.Status(trace.StatusCode.ERROR, without_data(error)))
    span.end(steps[-1].ended)


@cache
def _tracer() -> Any:
    """Return OpenTelemetry's tracer; None if nobody asks for traces. Set up once in a process."""
    asked = any(map(os.environ.get, ENDPOINTS)) and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
    if find_spec("opentelemetry") is None:
        if asked:
            log.warning(_NOT_INSTALLED)
        return None
    from opentelemetry import trace

    if asked and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        _set_up()
    return trace.get_tracer("kafka_lake")


def _set_up() -> None:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning(_NOT_INSTALLED)
        return
    from opentelemetry import trace

    name = os.environ.get("OTEL_SERVICE_NAME") or "kafka-lake"
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
