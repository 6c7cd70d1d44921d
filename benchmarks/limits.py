"""The limits of the machine: what one process reaches that does nothing but what can't be left out.

No exactly-once, no schema rules, no dead letters, no metadata column, no catalog: a lower bound of the work.
"""

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyarrow import json as arrow_json
from pyarrow import parquet

from benchmarks.data import ALL, Shape, Topic
from benchmarks.ours import Moment, measured
from benchmarks.results import Repeat

_BATCH = 50_000

_TYPES = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "array<string>": pa.list_(pa.string()),
    "timestamp": pa.timestamp("ms", tz="UTC"),
}


def read_all(bootstrap: str, topic: Topic, target: Path | None) -> int:
    """Consume a topic from its beginning, and write its records to one Parquet file if there is a target."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-limit",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 131072,
            "fetch.message.max.bytes": 16 << 20,
        }
    )
    consumer.assign([TopicPartition(topic.shape.name, p, 0) for p in range(topic.shape.partitions)])
    schema = arrow_schema(topic.shape)
    count = 0
    with ExitStack() as stack:
        stack.callback(consumer.close)
        writer = None
        if target is not None:
            writer = stack.enter_context(parquet.ParquetWriter(target, schema, compression="zstd", compression_level=1))
        while count < topic.records:
            messages = consumer.consume(min(_BATCH, topic.records - count), 1)
            count += len(messages)
            if writer is not None and messages:
                writer.write_table(decode(messages, schema))
    return count


def decode(messages: list[Any], schema: pa.Schema) -> pa.Table:
    """Return the values of messages as columns."""
    return parsed([message.value() for message in messages], schema)


def parsed(found: list[bytes], schema: pa.Schema) -> pa.Table:
    """Return JSON objects as columns."""
    lines = pa.BufferReader(b"\n".join(found))
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    return arrow_json.read_json(lines, arrow_json.ReadOptions(block_size=1 << 24), options)


def arrow_schema(shape: Shape) -> pa.Schema:
    """Return the columns of a shape's DDL."""
    columns = [column.split() for column in shape.ddl.split(", ")]
    return pa.schema([(name, _TYPES[kind]) for name, kind, *_ in columns])


def limit(bootstrap: str, broker: int, topic: Topic, folder: Path, write: bool) -> Repeat:
    """Measure one pass over a topic in a process of its own, from the consumer's start to the closed file."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "limit.parquet"
    task = {
        "bootstrap": bootstrap,
        "broker": broker,
        "topic": topic.shape.name,
        "records": topic.records,
        "size": topic.size,
        "target": str(target) if write else None,
    }
    failure = f"The limit on {topic.shape.name} could not be measured."
    [repeat] = measured("benchmarks.limits", task, folder / "limit.log", 1, failure)
    if write:
        repeat = replace(repeat, files=1, bytes=target.stat().st_size, rows=parquet.read_metadata(target).num_rows)
        target.unlink()
    return repeat


def main() -> None:
    """Do what the one argument says and print a repeat's JSON; the process that is measured."""
    task = json.loads(sys.argv[1])
    topic = Topic(ALL[task["topic"]], task["records"], task["size"])
    target = Path(task["target"]) if task["target"] else None
    begin = Moment.now(os.getpid(), task["broker"])
    rows = read_all(task["bootstrap"], topic, target)
    repeat = Moment.now(os.getpid(), task["broker"]).since(begin, topic)
    print(json.dumps(asdict(replace(repeat, rows=rows))), flush=True)


if __name__ == "__main__":
    main()
