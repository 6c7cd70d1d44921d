"""``kafka-lake rebuild``."""

from typing import Annotated
from uuid import uuid4

import typer

from kafka_lake.cli import project
from kafka_lake.cli.arguments import Yes
from kafka_lake.cli.output import Output, confirm, note
from kafka_lake.common.text import counted


def rebuild(
    table: Annotated[str, typer.Argument(help="Derived table; with its namespace if the name is ambiguous.")],
    yes: Yes = False,
) -> None:
    """Compute all rows of a derived table again, and replace them in one commit.

    Needed after a change of its query, or if a run can't determine which upstream rows changed. Readers see the old
    rows until the commit.
    """
    from kafka_lake.derived.engine import Engine
    from kafka_lake.derived.run import derive
    from kafka_lake.runtime.context import Observer

    spec = project.derived_table(table)
    if not yes:
        confirm(f"Compute all rows of {spec.name} again from {', '.join(spec.sources)}?")
    with project.open_connections(with_broker=False, with_spark=True) as connections:
        engine = Engine(
            catalog=connections.catalog,
            spark=connections.spark,
            run_id=str(uuid4()),
            observer=Observer(warn=note),
            retry=connections.retry,
        )
        report = derive(spec, engine, rebuild=True)
    rows = counted(report.rows, "row")
    Output().lines(f"{report.table}: {rows}, snapshot {report.snapshot}; {report.seconds:.0f} s.")
