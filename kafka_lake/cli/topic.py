"""``kafka-lake topic …``: makes, fills and shows topics, to try things with records of one's own."""

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.text import Text

from kafka_lake.cli import console
from kafka_lake.common.records import is_time
from kafka_lake.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Create, fill and show topics, to try kafka_lake with your own records.")

_STDIN = Path("-")

Topic = Annotated[str, typer.Argument(help="The Kafka topic; with its cluster's name if there are several: eu/orders.")]


@app.command()
def create(
    topic: Topic, partitions: Annotated[int, typer.Option(min=1, help="How many Kafka partitions it gets.")] = 1
) -> None:
    """Create a topic. If it exists, it is left unchanged."""
    from kafka_lake.cli.project import connections_at_hand, split
    from kafka_lake.kafka.topics import create_topic

    cluster, name = split(topic)
    with connections_at_hand(console.err.print, cluster=cluster, starts_broker=True) as connections:
        created = create_topic(connections.cluster, name, partitions)
    _tell_user(f"Topic {topic} {'created' if created else 'is there already'}.")


@app.command()
def produce(
    topic: Topic,
    file: Annotated[Path, typer.Argument(help="A file with a record in each line; - for standard input.")] = _STDIN,
    key_field: Annotated[
        str | None, typer.Option(help="The field of a line's JSON object that becomes the record's key.")
    ] = None,
) -> None:
    """Produce a record for each line of a file, unchanged. Empty lines are left out.

    With --key-field a line that isn't a JSON object with that field becomes a record without a key.
    """
    from kafka_lake.cli.project import connections_at_hand, split
    from kafka_lake.kafka.topics import produce as produce_records

    cluster, name = split(topic)
    brokers = connections_at_hand(console.err.print, cluster=cluster, starts_broker=True)
    with _opened(file) as lines, brokers as connections:
        count = produce_records(connections.cluster, name, records_of(lines, key_field))
    _tell_user(f"{count:,} record{'' if count == 1 else 's'} produced to topic {topic}.")


@app.command()
def tail(
    topic: Topic,
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="How many records.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: a JSON object in each line.")] = False,
) -> None:
    """Show the newest records of a topic, oldest first; times are in UTC. No consumer group is involved."""
    from kafka_lake.cli.project import connections_at_hand, split
    from kafka_lake.kafka.records import Sampler

    cluster, name = split(topic)
    asked = connections_at_hand(console.err.print, cluster=cluster)
    with asked as connections, Sampler(connections.cluster) as sampler:
        records = sampler.newest(connections.cluster.watermarks_of(name), number).records[-number:]
    if as_json:
        for each in records:
            typer.echo(json.dumps(as_json_object(each)))
    elif records:
        console.out.print(*map(record_lines, records), sep="\n", soft_wrap=True)
    else:
        _tell_user(f"Topic {topic} has no records.")


def records_of(lines: Iterable[bytes], key_field: str | None) -> Iterator[tuple[bytes | None, bytes]]:
    r"""Return a record's key and value for each line that isn't empty.

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
        found = json.loads(value)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get(field) is None:
        return None
    key = found[field]
    return key.encode("utf-8", "surrogatepass") if isinstance(key, str) else json.dumps(key).encode()


def as_json_object(record: Any) -> dict[str, Any]:
    """Return a record as JSON has it: keys and values as text, those that are not UTF-8 as Base64 in ``…_base64``."""
    shown: dict[str, Any] = {"partition": record.partition, "offset": record.offset, "timestamp": _time(record)}
    for name, content in (("key", record.key), ("value", record.value)):
        try:
            shown[name] = None if content is None else content.decode()
        except UnicodeDecodeError:
            shown[f"{name}_base64"] = base64.b64encode(content).decode()
    return shown


def record_lines(record: Any) -> Text:
    """Return a record as two lines for people: where and when it is with its key, and below it the value."""
    from kafka_lake.common.text import printable

    def shown(content: bytes | None) -> Text:
        return Text("none", "dim") if content is None else Text(printable(content.decode(errors="replace")))

    moment = (_time(record) or _no_time(record)).replace("T", " ").removesuffix("+00:00")
    place = Text(f"partition {record.partition}, offset {record.offset:,}, {moment}, key ", "bold")
    return Text.assemble(place, shown(record.key), "\n  ", shown(record.value))


def _no_time(record: Any) -> str:
    """Return what stands in the place of a timestamp that is no time."""
    return "no time" if record.timestamp_ms == -1 else f"{record.timestamp_ms} ms"


def _time(record: Any) -> str | None:
    """Return a record's Kafka timestamp, ISO 8601; None if it is no time."""
    if not is_time(record.timestamp_ms):
        return None
    return datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    if file == _STDIN:
        with nullcontext(sys.stdin.buffer) as lines:
            yield lines
        return
    try:
        lines = file.open("rb")
    except OSError as error:
        raise ConfigurationError(f"{file} can't be read: {error.strerror}.") from error
    with lines:
        yield lines


def _tell_user(text: str) -> None:
    console.out.print(text, soft_wrap=True, highlight=False, markup=False)
