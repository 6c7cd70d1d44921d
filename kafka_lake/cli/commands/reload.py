"""``kafka-lake reload``."""

from kafka_lake.cli import project
from kafka_lake.cli.output import Output, working
from kafka_lake.common.files import home
from kafka_lake.common.text import counted
from kafka_lake.devstack.dagster_runs import reload_definitions
from kafka_lake.devstack.running import running
from kafka_lake.errors import KafkaLakeError


def reload() -> None:
    """Reload the definitions in the Dagster of `kafka-lake up`. The sensor then starts runs for new topics."""
    from kafka_lake.spec.topic_table import once_each

    stack = running()
    if stack is None or not stack.ui_url:
        raise KafkaLakeError(
            f"No local stack with Dagster runs in {home()}.",
            "`kafka-lake up` starts one. In your own Dagster, use the button Reload definitions.",
        )
    # Loaded here too, since only this process reports errors with file and line.
    specs = project.topic_tables()
    with working("Loading definitions"):
        reload_definitions(stack.ui_url)
    urls = (f"  {stack.ui_url}/assets/{'/'.join(spec.identifier)}" for spec in once_each(specs))
    Output().lines(f"Dagster has loaded the tables of {counted(len(specs), 'topic')}:", *urls)
