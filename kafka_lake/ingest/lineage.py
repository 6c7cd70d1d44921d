"""OpenLineage events of a run: the topic that it reads, the tables that it writes, their columns and row counts."""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
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
from kafka_lake.runtime.context import Context
from kafka_lake.spec.topic_table import TopicTable

log = logging.getLogger(__name__)

_PREFIX = "OPENLINEAGE_"
_NAMESPACE = "OPENLINEAGE_NAMESPACE"
_PRODUCER = "kafka-lake://kafka-lake"


@dataclass(frozen=True)
class Subject:
    """The run that events describe.

    Args:
        name: Its name in log messages.
        job: OpenLineage's job name.
        asset: The Dagster asset; the parent job.
    """

    name: str
    table: str
    job: str
    asset: str
    run_id: str


class RunLineage(ABC):
    """Send events when a block begins and ends. A failure to send is logged and doesn't fail the run."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._client = lineage_client()
        self._ended = False

    def __enter__(self) -> Self:
        """Send the START event."""
        self._send("START")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Send the COMPLETE, FAIL or ABORT event, with what was written."""
        self._ended = True
        self._send("COMPLETE" if error is None else "FAIL" if isinstance(error, Exception) else "ABORT", error)

    @abstractmethod
    def inputs(self) -> Iterator[Any]:
        """Yield the datasets that the run reads."""

    @abstractmethod
    def outputs(self) -> Iterator[Any]:
        """Yield the datasets that the run writes."""

    def _send(self, kind: str, error: BaseException | None = None) -> None:
        if self._client is None:
            return
        try:
            self._client.emit(self._event(kind, error))
        except Exception as failed:
            log.warning("The OpenLineage event of %s was not sent: %s", self._subject.name, type(failed).__name__)

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
    """OpenLineage events of one run of a topic."""

    def __init__(self, context: Context) -> None:
        topic, table = context.spec.topic, context.table_name
        super().__init__(
            Subject(f"topic {topic}", table, job=f"ingest {table}", asset=f"kafka/{topic}", run_id=context.run_id)
        )
        self._context = context
        self._commits: list[tuple[tuple[str, str], Commit]] = []

    def committed(self, spec: TopicTable, commit: Commit) -> None:
        """Keep a commit for the last event."""
        if self._client is not None:
            self._commits.append((spec.identifier, commit))

    def inputs(self) -> Iterator[Any]:
        """Yield the topic."""
        from openlineage.client.event_v2 import InputDataset

        yield InputDataset(*self._topic_name())

    def _topic_name(self) -> tuple[str, str]:
        first = self._context.connections.cluster.bootstrap_servers.split(",")[0].strip()
        return f"kafka://{first}", self._context.spec.topic

    def outputs(self) -> Iterator[Any]:
        """Yield the existing tables, with the rows, bytes and files that the run has written to each."""
        from openlineage.client.event_v2 import OutputDataset

        context, catalog = self._context, self._context.connections.catalog
        for spec in context.spec.tables:
            if (table := catalog.table(spec.identifier)) is None:
                continue
            facets = table_facets(catalog.name, spec.identifier, table)
            if spec.transform is None:
                added = {spec.metadata_column, *(field.name for field in change_columns(spec))}
                facets["columnLineage"] = self._columns(table, added)
            done = [commit for table, commit in self._commits if table == spec.identifier]
            figures = [(commit.rows, commit.size, commit.files) for commit in done]
            outputs = written_facets(figures) if self._ended else {}
            yield OutputDataset(*place_of(table), facets=facets, outputFacets=outputs)

    def _columns(self, table: Table, added: set[str | None]) -> Any:
        """Return the column lineage: each column comes from the record's field of that name."""
        from openlineage.client.facet_v2 import column_lineage_dataset as column_lineage

        identity = [column_lineage.Transformation("DIRECT", "IDENTITY")]
        names = [field.name for field in table.schema().fields if field.name not in added]
        return column_lineage.ColumnLineageDatasetFacet(
            {
                name: column_lineage.Fields([column_lineage.InputField(*self._topic_name(), name, identity)])
                for name in names
            }
        )


def table_facets(catalog: str, identifier: tuple[str, str], table: Table) -> dict[str, Any]:
    """Return the facets of a table: its schema and its name in the catalog."""
    from openlineage.client.facet_v2 import schema_dataset, symlinks_dataset

    symlink = symlinks_dataset.Identifier(f"iceberg://{catalog}", ".".join(identifier), "TABLE")
    return {
        "schema": schema_dataset.SchemaDatasetFacet([_field(child) for child in table.schema().fields]),
        "symlinks": symlinks_dataset.SymlinksDatasetFacet([symlink]),
    }


def written_facets(done: Iterable[tuple[int, int, int]]) -> dict[str, Any]:
    """Return the output statistics of (rows, bytes, files) of commits."""
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    rows, size, files = map(sum, zip((0, 0, 0), *done, strict=True))
    return {"outputStatistics": statistics.OutputStatisticsOutputDatasetFacet(rows, size, files)}


def place_of(table: Table) -> tuple[str, str]:
    """Return namespace and name of a table as a dataset."""
    return _place(table.location())


def _field(field: NestedField) -> Any:
    from openlineage.client.facet_v2 import schema_dataset

    kind = field.field_type
    inner = [_field(child) for child in kind.fields] if isinstance(kind, StructType) else []
    type_name = "struct" if inner else str(kind)
    return schema_dataset.SchemaDatasetFacetFields(field.name, type_name, field.doc, fields=inner)


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
    """Return OpenLineage's client, made once in a process; None unless the environment configures it."""
    if not any(name.startswith(_PREFIX) and name != _NAMESPACE for name in os.environ):
        return None
    if os.environ.get("OPENLINEAGE_DISABLED", "").lower() == "true":
        return None
    if find_spec("openlineage") is None:
        log.warning("OpenLineage is configured, but not installed: pip install 'kafka-lake[openlineage]'")
        return None
    from openlineage.client import OpenLineageClient

    try:
        return OpenLineageClient()
    except Exception as error:
        log.warning("OpenLineage's configuration is invalid: %s", type(error).__name__)
        return None
