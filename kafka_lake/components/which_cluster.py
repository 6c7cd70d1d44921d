"""Which cluster a topic is of, where a project has several. Pure: plain names in, errors out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_lake.errors import ConfigurationError


@dataclass(frozen=True)
class Place:
    """A document, and the cluster that it is of or about.

    Args:
        cluster: The cluster's name; None if it says none.
        topic: The topic that it is about; empty for a cluster's document.
    """

    cluster: str | None
    path: Path
    topic: str = ""


def check_names(clusters: Sequence[Place]) -> None:
    """Make sure that several clusters of a project can be told apart.

    Raises:
        ConfigurationError: If one of several has no name, or two have the same, with the documents' names.
    """
    if len(clusters) < 2:
        return
    by_name: dict[str, Place] = {}
    for each in clusters:
        if each.cluster is None:
            others = ", ".join(str(other.path) for other in clusters if other is not each)
            raise ConfigurationError(
                f"The Kafka cluster in {each.path} has no name, and there is another one in {others}.",
                "Give each a name:, and each topic the name of its cluster, as in cluster: eu.",
            )
        if (other := by_name.setdefault(each.cluster, each)) is not each:
            raise ConfigurationError(
                f"Two Kafka clusters have the name {each.cluster}: in {other.path} and in {each.path}.",
                "Give one of them another name:.",
            )


def check_topics(topics: Iterable[Place], clusters: Sequence[Place]) -> None:
    """Make sure that each topic is of a cluster of the project.

    Raises:
        ConfigurationError: If one names none where clusters have names, or one that isn't there, with its document's
            name and what there is.
    """
    names = [each.cluster for each in clusters]
    known = ", ".join(sorted(name for name in names if name))
    for each in topics:
        if each.cluster in names:
            continue
        where = f"Topic {each.topic} ({each.path})"
        if each.cluster is None:
            raise ConfigurationError(
                f"{where} names no Kafka cluster, and those here have names: {known}.",
                f"Add one of them to its attributes, as in cluster: {known.partition(',')[0]}.",
            )
        there = f"Those here are: {known}." if known else f"The only one, in {clusters[0].path}, has no name."
        raise ConfigurationError(
            f"{where} names Kafka cluster {each.cluster}, and no document of type kafka_lake.KafkaCluster has "
            f"that name. {there}",
            "Correct its cluster:, or the cluster's name:.",
        )


def shared(setting: str, given: Sequence[tuple[Path, Mapping[str, str]]]) -> dict[str, str]:
    """Return a setting that all clusters of a project have in common.

    Args:
        given: Per document what it says; empty where it leaves the setting to the others.

    Raises:
        ConfigurationError: If two documents say different things.
    """
    said = [(path, dict(value)) for path, value in given if value]
    for path, value in said[1:]:
        if value != said[0][1]:
            raise ConfigurationError(
                f"{setting}: differs between {said[0][0]} and {path}, and all clusters of a project share one catalog "
                "and one Spark.",
                "Write it in one of them. For another catalog, make another project, with a code location of its own.",
            )
    return said[0][1] if said else {}
