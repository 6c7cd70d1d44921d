"""``kafka-lake rebuild``: a derived table is computed again from its upstream tables."""

from typing import Annotated
from uuid import uuid4

import typer

from kafka_lake.cli import console
from kafka_lake.common.printable import counted


def rebuild(
    table: Annotated[str, typer.Argument(help="The derived table; with its namespace if several have its name.")],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Compute all rows of a derived table again, and replace them in one commit.

    Do so after a change of its query, or if a run says that rows of an upstream table have changed and nobody can tell
    which. Readers have the old rows until the commit.
    """
    from kafka_lake.cli.project import connections_at_hand, derived_table
    from kafka_lake.derive.engine import Engine
    from kafka_lake.derive.run import derive
    from kafka_lake.ingest.observer import Observer

    spec = derived_table(table)
    if not yes:
        console.agree(f"Compute all rows of {spec.name} again from {', '.join(spec.sources)}?")
    with connections_at_hand(console.err.print, with_broker=False, with_spark=True) as connections:
        engine = Engine(
            catalog=connections.catalog,
            spark=connections.spark,
            run_id=str(uuid4()),
            observer=Observer(warn=console.err.print),
            retry=connections.retry,
            commit_slots=connections.commit_slots,
        )
        report = derive(spec, engine, rebuild=True)
    console.out.print(
        f"{report.table}: {counted(report.rows, 'row')}, snapshot {report.snapshot}; {report.seconds:.0f} s."
    )
