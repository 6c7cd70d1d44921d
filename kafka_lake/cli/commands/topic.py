"""``kafka-lake topic``: create, fill and show topics."""

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.text import Text

from kafka_lake.cli import output, project
from kafka_lake.cli.arguments import Topic
from kafka_lake.cli.output import Output
from kafka_lake.common.records import is_time
from kafka_lake.common.text import counted, printable
from kafka_lake.errors import ConfigurationError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Create, fill and show topics, to try kafka_lake with your own records.",
)

_STDIN = Path("-")


@app.command()
def create(topic: Topic, partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")] = 1) -> None:
    """Create a topic. An existing topic stays unchanged."""
    from kafka_lake.kafka import topics

    cluster, name = project.split_topic(topic)
    with project.open_connections(with_catalog=False, cluster=cluster) as connections:
        created = topics.create_topic(connections.cluster, name, partitions)
    Output().lines(f"Topic {topic} {'created' if created else 'already exists'}.")


@app.command()
def produce(
    topic: Topic,
    file: Annotated[Path, typer.Argument(help="File with a record per line; - for standard input.")] = _STDIN,
    key_field: Annotated[
        str | None, typer.Option(help="Field of the JSON object that becomes the record's key.")
    ] = None,
) -> None:
    """Produce one record per line of a file, unchanged. Empty lines are skipped.

    With --key-field, a line that isn't a JSON object with that field becomes a record without a key.
    """
    from kafka_lake.kafka import topics

    cluster, name = project.split_topic(topic)
    with (
        _opened(file) as lines,
        project.open_connections(with_catalog=False, cluster=cluster) as connections,
    ):
        count = topics.produce(connections.cluster, name, records_of(lines, key_field))
    Output().lines(f"{counted(count, 'record')} produced to topic {topic}.")


@app.command()
def tail(
    topic: Topic,
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="Number of records.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
) -> None:
    """Show the newest records of a topic, oldest first, with times in UTC. No consumer group is used."""
    from kafka_lake.kafka.records import Sampler

    cluster, name = project.split_topic(topic)
    with (
        project.open_connections(with_catalog=False, cluster=cluster) as connections,
        Sampler(connections.cluster) as sampler,
    ):
        records = sampler.newest(connections.cluster.watermarks_of(name), number).records[-number:]
    if as_json:
        for record in records:
            typer.echo(json.dumps(as_json_object(record)))
        return
    if records:
        output.out.print(*map(record_lines, records), sep="\n", soft_wrap=True)
    else:
        Output().lines(f"Topic {topic} has no records.")


def records_of(lines: Iterable[bytes], key_field: str | None) -> Iterator[tuple[bytes | None, bytes]]:
    r"""Yield a record's key and value for each line that isn't empty.

    Args:
        lines: With or without their ends.
        key_field: The field of a JSON object whose value becomes the key: text as it is, anything else as JSON.

    >>> list(records_of([b'{"id": 7}\n', b"no JSON"], "id"))
    [(b'7', b'{"id": 7}'), (None, b'no JSON')]
    """
    for line in lines:
        if value := line.rstrip(b"\r\n"):
            yield _key(value, key_field) if key_field is not None else None, value


def _key(value: bytes, field: str) -> bytes | None:
    try:
        document = json.loads(value)
    except ValueError:
        return None
    if not isinstance(document, dict) or document.get(field) is None:
        return None
    key = document[field]
    return key.encode("utf-8", "surrogatepass") if isinstance(key, str) else json.dumps(key).encode()


def as_json_object(record: Any) -> dict[str, Any]:
    """Return a record for programs: key and value as text, or as Base64 in ``…_base64`` if they aren't UTF-8."""
    document: dict[str, Any] = {"partition": record.partition, "offset": record.offset, "timestamp": _time(record)}
    for name, content in (("key", record.key), ("value", record.value)):
        try:
            document[name] = None if content is None else content.decode()
        except UnicodeDecodeError:
            document[f"{name}_base64"] = base64.b64encode(content).decode()
    return document


def record_lines(record: Any) -> Text:
    """Return a record as two lines for people: offset, time and key, and below them the value."""

    def readable(content: bytes | None) -> Text:
        return Text("none", "dim") if content is None else Text(printable(content.decode(errors="replace")))

    no_time = "no time" if record.timestamp_ms == -1 else f"{record.timestamp_ms} ms"
    moment = (_time(record) or no_time).replace("T", " ").removesuffix("+00:00")
    heading = Text(f"partition {record.partition}, offset {record.offset:,}, {moment}, key ", "bold")
    return Text.assemble(heading, readable(record.key), "\n  ", readable(record.value))


def _time(record: Any) -> str | None:
    """Return a record's Kafka timestamp, ISO 8601; None if it is outside of the years 1970 to 9999."""
    if not is_time(record.timestamp_ms):
        return None
    return datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    if file == _STDIN:
        yield sys.stdin.buffer
        return
    try:
        lines = file.open("rb")
    except OSError as error:
        raise ConfigurationError(f"{file} can't be read: {error.strerror}.") from error
    with lines:
        yield lines
