"""Lineage of a derived table for OpenLineage: a run, the tables that it reads and the one that it writes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyiceberg.table import Table
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage

from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import DeriveReport
from kafka_lake.derive.plan import origin_of
from kafka_lake.derive.query import ORIGIN, with_origin
from kafka_lake.ingest.lineage import RunLineage, Subject, place_of, table_facets, written_facets
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import summary_of


class DeriveLineage(RunLineage):
    """What is told of one run of a derived table, during a block."""

    def __init__(self, spec: DerivedTable, catalog: LakeCatalog, run_id: str) -> None:
        super().__init__(
            Subject(
                f"table {spec.name}",
                spec.name,
                job=f"derive {spec.name}",
                asset="/".join(spec.identifier),
                run_id=run_id,
            )
        )
        self._spec = spec
        self._catalog = catalog
        self._report: DeriveReport | None = None

    def derived(self, report: DeriveReport) -> None:
        """Note what the run has done, which is told of at the end."""
        self._report = report

    def inputs(self) -> Iterator[Any]:
        """Give the tables of ``from`` and ``join`` that are there."""
        from openlineage.client.event_v2 import InputDataset

        for name, table in self._read().items():
            identifier = {**self._spec.upstream, **self._spec.joined}[name]
            facets = table_facets(self._catalog.name, identifier, table)
            yield InputDataset(*place_of(table), facets=facets)

    def outputs(self) -> Iterator[Any]:
        """Give the derived table if it is there, and what the run has written to it."""
        from openlineage.client.event_v2 import OutputDataset

        table = self._catalog.table(self._spec.identifier)
        if table is None:
            return
        facets = table_facets(self._catalog.name, self._spec.identifier, table)
        if self._spec.sql is not None:
            facets["columnLineage"] = self._columns(table, self._spec.sql)
        yield OutputDataset(*place_of(table), facets=facets, outputFacets=self._written(table) if self._ended else {})

    def _written(self, table: Table) -> dict[str, Any]:
        report = self._report
        snapshot = table.metadata.snapshot_by_id(report.snapshot) if report and report.snapshot else None
        if report is None or snapshot is None:
            return written_facets([])
        summary = summary_of(snapshot)
        size, files = (int(summary.get(each, 0)) for each in ("added-files-size", "added-data-files"))
        return written_facets([(report.rows, size, files)])

    def _read(self) -> dict[str, Table]:
        every = {**self._spec.upstream, **self._spec.joined}
        tables = {name: self._catalog.table(identifier) for name, identifier in every.items()}
        return {name: table for name, table in tables.items() if table is not None}

    def _columns(self, table: Table, sql: str) -> Any:
        """Return of which columns of the tables that are read each column is made, where the query's text tells."""
        from openlineage.client.facet_v2 import column_lineage_dataset as column_lineage

        spec, read = self._spec, self._read()
        # The query knows the column that tells the record by one name, and those of join tables not at all.
        own = {name: origin_of(each) for name, each in read.items()}
        names = {name: [field.name for field in each.schema().fields] for name, each in read.items()}
        seen = {
            name: [
                ORIGIN if each == own[name] else each for each in there if name in spec.upstream or each != own[name]
            ]
            for name, there in names.items()
        }
        query = with_origin(sql, spec.upstream) if spec.is_row_wise else sql
        found = origins_of(query, [field.name for field in table.schema().fields], seen)
        fields = {}
        for column, origins in found.items():
            inputs = []
            for each in origins:
                name = own[each.table] if each.column == ORIGIN else None
                told = [column_lineage.Transformation("DIRECT", each.how)]
                inputs.append(column_lineage.InputField(*place_of(read[each.table]), name or each.column, told))
            fields[column] = column_lineage.Fields(inputs)
        return column_lineage.ColumnLineageDatasetFacet(fields)


How = Literal["IDENTITY", "TRANSFORMATION", "AGGREGATION"]


@dataclass(frozen=True, order=True)
class Origin:
    """A column that another one is made of.

    Args:
        table: The table's name in the query.
        column: The column, as the table has it.
        how: Whether it is that column, is computed from it, or from it in several rows.
    """

    table: str
    column: str
    how: How


def origins_of(sql: str, columns: Sequence[str], tables: Mapping[str, Sequence[str]]) -> dict[str, list[Origin]]:
    """Return for each column of a query's result those that it is made of; those that nobody can tell are left out.

    What decides which rows there are (JOIN, WHERE, GROUP BY) is no origin of a column.

    >>> origins_of("SELECT id, sum(total * 2) AS t, 1 AS one FROM orders", ["id", "one"], {"orders": ["Id", "total"]})
    {'id': [Origin(table='orders', column='Id', how='IDENTITY')]}
    """
    known = {table.lower(): (table, {each.lower(): each for each in there}) for table, there in tables.items()}
    schema = {table: dict.fromkeys(there, "string") for table, (_, there) in known.items()}
    found: dict[str, list[Origin]] = {}
    for column in columns:
        try:
            # By their names in lower case, as Spark takes them for the same.
            node = lineage(f"`{column.lower()}`", sql, schema=schema, dialect="spark")
        except (SqlglotError, ValueError, KeyError, RecursionError):
            continue
        origins = set[Origin]()
        for table, name, how in _leaves(node, "IDENTITY"):
            written, there = known.get(table, ("", {}))
            if name in there:
                origins.add(Origin(written, there[name], how))
        if origins:
            found[column] = sorted(origins)
    return found


def _leaves(node: Node, how: How) -> list[tuple[str, str, How]]:
    """Return table, column and way of what a column is made of in the end."""
    if isinstance(node.expression, exp.Table):
        return [(node.expression.name.lower(), node.name.rpartition(".")[2].strip("`").lower(), how)]
    inner = node.expression.unalias() if isinstance(node.expression, exp.Expr) else node.expression
    if how != "AGGREGATION" and isinstance(inner, exp.Expr) and not isinstance(inner, exp.Query):
        if inner.find(exp.AggFunc):
            how = "AGGREGATION"
        elif not isinstance(inner, exp.Column):
            how = "TRANSFORMATION"
    return [leaf for each in node.downstream for leaf in _leaves(each, how)]
