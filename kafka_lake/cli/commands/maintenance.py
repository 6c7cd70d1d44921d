"""``kafka-lake maintain``: how the tables of topics and derived tables fare, and what they need."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from kafka_lake.cli import console
from kafka_lake.cli.console import AsJson


def maintain(
    topic: Annotated[
        str | None, typer.Argument(help="The Kafka topic, or a derived table; all of them by default.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do what is needed. Without this option the tables are only looked at.")
    ] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="With --yes: compact and expire all that can be, though it isn't needed yet; other tables too.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Also count the rows that would expire. Reads a column of the files that have old rows and others.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how the tables fare, and what they need; with --yes, compact them and expire old rows and snapshots.

    The sensor kafka_maintenance asks Dagster for the same of topics' tables; runs of derived tables do it themselves.
    Settings: `maintenance:` in the table's YAML.
    """
    from kafka_lake.cli.output import file_lines, health_table, preview_lines
    from kafka_lake.cli.project import connections_at_hand, maintained_tables
    from kafka_lake.errors import ConfigurationError
    from kafka_lake.maintenance.maintain import Maintained, due, preview, sentence
    from kafka_lake.maintenance.maintain import maintain as maintain_tables

    if dry_run and yes:
        raise ConfigurationError("--dry-run does nothing, and --yes does what is needed.", "Leave one of them out.")
    if everything and not yes:
        raise ConfigurationError("--all does nothing without --yes.", "Add --yes, or leave --all out.")
    specs = maintained_tables(topic)
    told: list[dict[str, Any]] = []
    failed: list[Exception] = []
    show = (lambda *_, **__: None) if as_json else console.out.print
    with connections_at_hand(console.err.print, with_broker=False) as connections:
        for spec in specs:
            done: list[Maintained] = []
            try:
                previews = preview(spec, connections) if dry_run else []
                found = [each.due for each in previews] if dry_run else due(spec, connections)
                if not yes:
                    told += [{**asdict(each), "reasons": each.needs.reasons} for each in found]
                    show(health_table(spec, found))
                    for line in file_lines(found):
                        show(line, markup=False, soft_wrap=True)
                    for number, looked_at in enumerate(previews, len(told) - len(previews)):
                        rows = looked_at.rows and asdict(looked_at.rows)
                        told[number] |= {"would_expire": rows}
                        for line in preview_lines(looked_at):
                            show(line, markup=False, soft_wrap=True)
                    continue
                with console.err.status(f"Maintaining {'.'.join(spec.identifier)}"):
                    maintain_tables(spec, connections, everything, done.append)
            except Exception as error:
                # The other topics don't wait for somebody to mend this one.
                failed.append(error)
                show(f"{'.'.join(spec.identifier)}: failed, see below.", markup=False)
            else:
                if not done:
                    alone = any(each.left_alone and each.needs.reasons for each in found)
                    why = "left alone, as others have created it; see --all" if alone else "no table needs anything"
                    show(f"{'.'.join(spec.identifier)}: {why}.", markup=False)
            for each in done:
                show(sentence(each), markup=False, soft_wrap=True)
            told += [asdict(each) for each in done]
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    if failed:
        raise failed[0]
