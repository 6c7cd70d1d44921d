"""Documents that are about many topics. Abstract: what a cluster asks of them, whatever tells their topics."""

from collections.abc import Iterable, Sequence
from typing import Any

import dagster as dg

from kafka_lake.components.from_document import FromDocument
from kafka_lake.components.kafka_topic import KafkaTopic
from kafka_lake.components.which_cluster import Place
from kafka_lake.config.topic_pattern import sentence


class HasTopics(FromDocument):
    """A document about many topics of one cluster."""

    cluster: Any = None

    @property
    def place(self) -> Place:
        """Return where the document is, and which topics and cluster it names."""
        raise NotImplementedError

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the assets and checks of all topics."""
        return self.defs_of(self.topic_tables())

    def defs_of(self, topics: Iterable[KafkaTopic]) -> dg.Definitions:
        """Return the assets and checks of topics; their schema files are named from where the document is."""
        folder = self._place.parent
        return dg.Definitions(assets=[each for topic in topics for each in topic.assets(folder)])

    @property
    def is_known(self) -> bool:
        """Return whether it is known which topics there are."""
        return True

    def topic_tables(self) -> Sequence[KafkaTopic]:
        """Return the topics, each as a document of its own would have it."""
        raise NotImplementedError

    def new(self, names: Iterable[str]) -> list[str]:
        """Return the topics among those of the cluster that the document is about and doesn't know yet."""
        raise NotImplementedError

    @property
    def shown(self) -> str:
        """Return where the document is, as users name it."""
        return "/".join(self._place.parts[-3:])


def new_topics(documents: Iterable[HasTopics | KafkaTopic], names: Sequence[str]) -> str:
    """Return what to do about topics that no table is for yet; empty if there are none.

    Args:
        documents: All documents about topics of a cluster, and those by whose patterns topics share a table.
        names: The topics of the cluster.
    """
    documents = list(documents)
    tables = {each.shown: each.full_table for each in documents if isinstance(each, KafkaTopic)}
    return sentence({each.shown: each.new(names) for each in documents}, tables)
