"""``kafka-lake ingest``."""

from uuid import uuid4

from kafka_lake.cli import project
from kafka_lake.cli.arguments import Topic
from kafka_lake.cli.commands.status import collect
from kafka_lake.cli.output import Output
from kafka_lake.cli.progress import run_progress, run_summary


def ingest(topic: Topic) -> None:
    """Bring a topic's tables up to date, in this process."""
    from kafka_lake.ingest import run

    specs = project.topic_tables(topic)
    with project.open_connections(with_spark=True, cluster=specs[0].cluster) as connections:
        for spec in specs:
            status = collect([spec], connections.cluster, connections.catalog)[0]
            with run_progress(topic, backlog=status.lag) as observer:
                report = run.ingest(spec, connections, str(uuid4()), observer=observer)
            Output().lines(*(run_summary(report.of(table.identifier)) for table in spec.tables))
