"""Lineage of a derived table for OpenLineage: a run, the tables that it reads and the one that it writes."""

from collections.abc import Iterator
from typing import Any

from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import DeriveReport
from kafka_lake.ingest.lineage import RunLineage, Subject, place_of, table_facets, written_facets
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import summary_of


class DeriveLineage(RunLineage):
    """OpenLineage's events of one run of a derived table, during a block."""

    def __init__(self, spec: DerivedTable, catalog: LakeCatalog, run_id: str) -> None:
        asset = "/".join(spec.identifier)
        super().__init__(Subject(f"table {spec.name}", spec.name, f"derive {spec.name}", asset=asset, run_id=run_id))
        self._spec = spec
        self._catalog = catalog
        self._report: DeriveReport | None = None

    def derived(self, report: DeriveReport) -> None:
        """Keep the run's report for the last event."""
        self._report = report

    def inputs(self) -> Iterator[Any]:
        """Give the tables of ``from`` and ``join`` that are there."""
        from openlineage.client.event_v2 import InputDataset

        for identifier in (*self._spec.upstream.values(), *self._spec.joined.values()):
            if table := self._catalog.table(identifier):
                yield InputDataset(*place_of(table), facets=table_facets(self._catalog.name, identifier, table))

    def outputs(self) -> Iterator[Any]:
        """Give the derived table if it is there, and what the run has written to it."""
        from openlineage.client.event_v2 import OutputDataset

        table, report = self._catalog.table(self._spec.identifier), self._report
        if table is None:
            return
        written = []
        if report and report.snapshot and (snapshot := table.metadata.snapshot_by_id(report.snapshot)):
            summary = summary_of(snapshot)
            size, files = (int(summary.get(each, 0)) for each in ("added-files-size", "added-data-files"))
            written = [(report.rows, size, files)]
        facets = table_facets(self._catalog.name, self._spec.identifier, table)
        done = written_facets(written) if self._ended else {}
        yield OutputDataset(*place_of(table), facets=facets, outputFacets=done)
