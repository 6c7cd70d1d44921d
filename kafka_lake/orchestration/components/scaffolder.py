"""`dg scaffold defs kafka_lake.KafkaTopic orders --topic orders`: writes a document by the topic's newest records."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
from dotenv import load_dotenv
from pydantic import BaseModel, Field

from kafka_lake.common.logs import without_secret_values
from kafka_lake.errors import ConfigurationError, KafkaLakeError
from kafka_lake.orchestration.resources import CatalogResource, SparkResource

_SAMPLE = 20


class TopicParams(BaseModel):
    """What `dg scaffold` asks for."""

    topic: str = Field(description="Name of the topic.")
    cluster: str | None = Field(default=None, description="Name of its KafkaCluster document, if that has one.")


class TopicScaffolder(dg.Scaffolder[Any]):
    """Writes the document of a topic, as `kafka-lake discover TOPIC --write` does."""

    @classmethod
    def get_scaffold_params(cls) -> type[TopicParams]:
        """Return the options of `dg scaffold`."""
        return TopicParams

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the document.

        Raises:
            SystemExit: If the brokers don't answer, or the topic doesn't exist. No document and no folder is left.
        """
        try:
            text = _document(request.project_root or Path.cwd(), request.params)
        except Exception as error:
            # `dg` has made the folder.
            with suppress(OSError):
                request.target_path.rmdir()
            if not isinstance(error, KafkaLakeError):
                raise
            # `dg` shows the trace of other exceptions.
            raise SystemExit(f"Error: {without_secret_values(str(error))}") from error
        with (request.target_path if request.append else request.target_path / "defs.yaml").open("a") as file:
            file.write("---\n" if request.append else "")
            file.write(text.replace("type: kafka_lake.KafkaTopic\n", f"type: {request.type_name}\n", 1))


def _document(root: Path, wanted: TopicParams) -> str:
    from kafka_lake.config.systems import build_connections
    from kafka_lake.devstack.running import running
    from kafka_lake.discovery.discover import discover, document
    from kafka_lake.orchestration.components.base import ClusterDocument

    load_dotenv(root / ".env")
    if stack := running():
        stack.use()
    tree = dg.ComponentTree.for_project(root)
    clusters = tree.get_all_components(ClusterDocument)  # type: ignore[type-abstract]
    cluster = next((found for found in clusters if found.name == wanted.cluster), None)
    if cluster is None:
        raise ConfigurationError(
            f"No document of type kafka_lake.KafkaCluster is named {wanted.cluster}.",
            f"Name one by --cluster: {', '.join(str(found.name) for found in clusters) or 'there is none yet'}.",
        )
    catalog = CatalogResource()
    spark = SparkResource(spark_config={}, catalog=catalog)
    connections = build_connections(cluster.kafka(), catalog, spark, cluster.registry())
    (found,) = discover([wanted.topic], [], connections, count=_SAMPLE)
    if found.error:
        raise KafkaLakeError(found.error)
    return document(found)
