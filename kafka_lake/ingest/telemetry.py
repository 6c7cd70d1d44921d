"""What other systems hear of a run: events for OpenLineage, spans for OpenTelemetry."""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

from pyiceberg.table import Table
from pyiceberg.types import NestedField, StructType

from kafka_lake.error_classification import without_data
from kafka_lake.formats.rows import change_columns
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Context, Step
from kafka_lake.spec.topic_table import TopicTable

log = logging.getLogger(__name__)

_PREFIX = "OPENLINEAGE_"
_NAMESPACE = "OPENLINEAGE_NAMESPACE"
_PRODUCER = "kafka-lake://kafka-lake"


@dataclass(frozen=True)
class Subject:
    """Whose run is told of.

    Args:
        name: What the log calls it.
        job: The name of the job.
        asset: The asset whose run in Dagster it is a part of.
    """

    name: str
    table: str
    job: str
    asset: str
    run_id: str


class RunLineage(ABC):
    """What is told of one run, during a block. Whatever goes wrong with it is logged, and no failure of the run."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._client = lineage_client()
        self._ended = False

    def __enter__(self) -> Self:
        """Tell that the run begins."""
        self._tell("START")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Tell how the run ends, and what it has written."""
        self._ended = True
        self._tell("COMPLETE" if error is None else "FAIL" if isinstance(error, Exception) else "ABORT", error)

    @abstractmethod
    def inputs(self) -> Iterator[Any]:
        """Give the datasets that the run reads."""

    @abstractmethod
    def outputs(self) -> Iterator[Any]:
        """Give the datasets that the run writes, with what it has written by then."""

    def _tell(self, kind: str, error: BaseException | None = None) -> None:
        if self._client is None:
            return
        try:
            self._client.emit(self._event(kind, error))
        except Exception as failed:
            log.warning("OpenLineage wasn't told of %s: %s", self._subject.name, type(failed).__name__)

    def _event(self, kind: str, error: BaseException | None) -> Any:
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import error_message_run, parent_run

        subject = self._subject
        namespace = os.environ.get(_NAMESPACE) or "kafka_lake"
        facets: dict[str, Any] = {}
        if (of_dagster := _uuid(subject.run_id)) is not None:
            parent = parent_run.Job(namespace, subject.asset)
            facets["parent"] = parent_run.ParentRunFacet(parent_run.Run(of_dagster), parent)
        if isinstance(error, Exception):
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(without_data(error), "PYTHON")
        run = str(uuid5(NAMESPACE_URL, f"{subject.run_id} {subject.table}"))
        return RunEvent(
            eventTime=datetime.now(UTC).isoformat(),
            eventType=RunState(kind),
            run=Run(run, facets),
            job=Job(namespace, subject.job),
            inputs=list(self.inputs()),
            outputs=list(self.outputs()),
            producer=f"{_PRODUCER}/{version('kafka-lake')}",
        )


class Lineage(RunLineage):
    """What is told of one run of a topic, during a block."""

    def __init__(self, context: Context) -> None:
        topic, table = context.spec.topic, context.table_name
        super().__init__(
            Subject(f"topic {topic}", table, job=f"ingest {table}", asset=f"kafka/{topic}", run_id=context.run_id)
        )
        self._context = context
        self._commits: list[tuple[tuple[str, str], Commit]] = []

    def committed(self, spec: TopicTable, commit: Commit) -> None:
        """Note a commit to a table of the topic, which is told of at the end."""
        if self._client is not None:
            self._commits.append((spec.identifier, commit))

    def inputs(self) -> Iterator[Any]:
        """Give the topic."""
        from openlineage.client.event_v2 import InputDataset

        yield InputDataset(*self._topic_name())

    def _topic_name(self) -> tuple[str, str]:
        first = self._context.connections.cluster.bootstrap_servers.split(",")[0].strip()
        return f"kafka://{first}", self._context.spec.topic

    def outputs(self) -> Iterator[Any]:
        """Give the tables that are there, with what the run has written to each."""
        from openlineage.client.event_v2 import OutputDataset

        context, catalog = self._context, self._context.connections.catalog
        for spec in context.spec.tables:
            if (table := catalog.table(spec.identifier)) is None:
                continue
            facets = table_facets(catalog.name, spec.identifier, table)
            if spec.transform is None:
                others = {spec.metadata_column, *(field.name for field in change_columns(spec))}
                facets["columnLineage"] = self._columns(table, others)
            done = [commit for table, commit in self._commits if table == spec.identifier]
            figures = [(each.rows, each.size, each.files) for each in done]
            outputs = written_facets(figures) if self._ended else {}
            yield OutputDataset(*place_of(table), facets=facets, outputFacets=outputs)

    def _columns(self, table: Table, others: set[str | None]) -> Any:
        """Return of which field of a record each column is."""
        from openlineage.client.facet_v2 import column_lineage_dataset as column_lineage

        is_it = [column_lineage.Transformation("DIRECT", "IDENTITY")]
        names = [field.name for field in table.schema().fields if field.name not in others]
        return column_lineage.ColumnLineageDatasetFacet(
            {
                name: column_lineage.Fields([column_lineage.InputField(*self._topic_name(), name, is_it)])
                for name in names
            }
        )


def table_facets(catalog: str, identifier: tuple[str, str], table: Table) -> dict[str, Any]:
    """Return what is told of each table: its columns, and its name in the catalog."""
    from openlineage.client.facet_v2 import schema_dataset, symlinks_dataset

    symlink = symlinks_dataset.Identifier(f"iceberg://{catalog}", ".".join(identifier), "TABLE")
    return {
        "schema": schema_dataset.SchemaDatasetFacet([_field(each) for each in table.schema().fields]),
        "symlinks": symlinks_dataset.SymlinksDatasetFacet([symlink]),
    }


def written_facets(done: Iterable[tuple[int, int, int]]) -> dict[str, Any]:
    """Return what is told of what was written to a table."""
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    rows, size, files = map(sum, zip((0, 0, 0), *done, strict=True))
    return {"outputStatistics": statistics.OutputStatisticsOutputDatasetFacet(rows, size, files)}


def place_of(table: Table) -> tuple[str, str]:
    """Return namespace and name of a table as a dataset."""
    return _place(table.location())


def _field(field: NestedField) -> Any:
    from openlineage.client.facet_v2 import schema_dataset

    kind = field.field_type
    inner = [_field(each) for each in kind.fields] if isinstance(kind, StructType) else []
    told = "struct" if inner else str(kind)
    return schema_dataset.SchemaDatasetFacetFields(field.name, told, field.doc, fields=inner)


def _place(location: str) -> tuple[str, str]:
    """Return namespace and name of the folder of a table.

    >>> _place("s3a://lake/shop/orders"), _place("file:///data/shop/orders")
    (('s3://lake', 'shop/orders'), ('file', '/data/shop/orders'))
    """
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return "file", parts.path
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    return f"{scheme}://{parts.netloc}", parts.path.strip("/")


def _uuid(text: str) -> str | None:
    try:
        return str(UUID(text))
    except ValueError:
        return None


@cache
def lineage_client() -> Any:
    """Return OpenLineage's client; None if nobody asks for events. Made once in a process."""
    if not any(name.startswith(_PREFIX) and name != _NAMESPACE for name in os.environ):
        return None
    if os.environ.get("OPENLINEAGE_DISABLED", "").lower() == "true":
        return None
    if find_spec("openlineage") is None:
        log.warning("Lineage is asked for by the environment, and not sent: pip install 'kafka-lake[openlineage]'")
        return None
    from openlineage.client import OpenLineageClient

    try:
        return OpenLineageClient()
    except Exception as error:
        log.warning("OpenLineage's settings can't be used: %s", type(error).__name__)
        return None


log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""OpenTelemetry's variables that say where traces go; without both, nothing is sent."""
_FLUSH_MS = 5_000
_NOT_INSTALLED = "Traces are asked for by the environment, and not sent: pip install 'kafka-lake[otel]'"


def trace_commit(context: Context, commit: Commit) -> None:
    """Tell of a commit that was made."""
    steps = context.effort.take_steps()
    if (tracer := current_tracer()) is None:
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
    """Tell of a commit that failed; what becomes of the run is decided by others."""
    steps = context.effort.take_steps()
    if (tracer := current_tracer()) is not None:
        _spans(tracer, context, steps, {"error.type": type(error).__qualname__}, error=error)
        flush()


def flush() -> None:
    """Send what is yet to be sent, for up to five seconds: a process may end without asking for it."""
    if current_tracer() is None:
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
def current_tracer() -> Any:
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
