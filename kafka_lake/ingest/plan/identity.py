"""Whether a topic is the one that a table was filled from, and what can't be told of it."""

from collections.abc import Collection, Sequence

from kafka_lake.common.offsets import Loss, Position, Watermarks
from kafka_lake.errors import TopicReplacedError

WAYS_ON = (
    "Nothing was read. To continue with what is left and have the loss recorded, set on_data_loss: continue in the "
    "topic's YAML. Or choose where those partitions continue: `kafka-lake reset {topic} --to … --partitions …`."
)
_REPLACED = (
    "Nothing was read. The brokers may have been restored from an older copy. `kafka-lake reset {topic} --to earliest "
    "--partitions {partitions}` reads what the log has now, in the place of the rows from its first offset on. (A "
    "table with write: upsert keeps its rows then; drop it to fill it anew.) "
    "`kafka-lake reset {topic} --to {targets}` accepts the log as it is, and so does on_data_loss: continue in the "
    "topic's YAML, which records the loss."
)

_WHY = {
    False: "It was deleted and recreated.",
    True: "These are the brokers of another cluster. If that is a mistake, mend cluster: in the topic's YAML, or the "
    "brokers' address. If the topic has moved there, it is another topic, and its offsets are others.",
}


def ways_on(topic: str, losses: Sequence[Loss]) -> str:
    """Return what to do about losses: of logs that were replaced, if there are any, since that is the larger one.

    Args:
        losses: What Kafka no longer has.
    """
    replaced = [loss for loss in losses if loss.reason == "replaced"]
    if not replaced:
        return WAYS_ON.format(topic=topic)
    return _REPLACED.format(
        topic=topic,
        partitions=",".join(str(loss.partition) for loss in replaced),
        targets=",".join(f"{loss.partition}:{loss.end}" for loss in replaced),
    )


def unsure(position: Position | None, now: Watermarks, partitions: Collection[int] | None = None) -> list[int]:
    """Return the partitions that have another leader than when the position was written, whose logs may differ.

    Args:
        position: The table's, None if it has none yet.
        partitions: Only these; None for all.
    """
    if position is None or not position.identity.same_as(now.identity):
        return []
    return [
        p
        for p, epoch in sorted(position.epochs.items())
        if (partitions is None or p in partitions)
        and now.epochs.get(p, epoch) != epoch
        and position.offsets.get(p, -1) >= now.low[p]
    ]


def untold(now: Watermarks) -> str | None:
    """Return what can't be told of a topic since its brokers are old, as a sentence; None if all can be told."""
    if now.identity.topic_id and now.epochs.keys() >= now.end.keys():
        return None
    what = [] if now.identity.topic_id else ["no topic id (they are older than Kafka 2.8)"]
    if not now.epochs.keys() >= now.end.keys():
        what.append("no leader epochs (they are older than Kafka 2.1)")
    return (
        f"Topic {now.identity.topic}: the brokers tell {' and '.join(what)}. If the topic was deleted and recreated, "
        "or its log was cut off, and it is longer than the table's position by now, nobody can tell, and what lies "
        "before the position is not read."
    )


def another_topic(position: Position, now: Watermarks) -> TopicReplacedError:
    """Return the error of a topic that isn't the one that the table was filled from."""
    before, current = position.identity, now.identity
    if before.topic != current.topic:
        return TopicReplacedError(
            f"The table of topic {current.topic} is topic {before.topic}'s: it was filled from that one as far as "
            f"{dict(position.offsets)} (topic id {before.topic_id}, cluster {before.cluster_id}).",
            "Nothing was read, since rows of two topics would be mixed. Give one of them another table: in its YAML; "
            f"if {current.topic} takes the place of {before.topic}, say so with `kafka-lake reset {current.topic} "
            "--to earliest`.",
        )
    clusters = before.cluster_id and current.cluster_id and before.cluster_id != current.cluster_id
    what = "cluster id" if clusters else "topic id"
    return TopicReplacedError(
        f"Topic {current.topic} is not the topic that the table was filled from: its {what} differs "
        f"(table: topic {before.topic}, id {before.topic_id}, cluster {before.cluster_id}; "
        f"now: topic {current.topic}, id {current.topic_id}, cluster {current.cluster_id}). "
        f"The table's position is {dict(position.offsets)}.",
        f"{_WHY[bool(clusters)]} {WAYS_ON.format(topic=current.topic)}",
    )
