"""What each kind of topic costs: the same orders in every format and layout, in turn, in one warm process."""

import json
import os
import statistics
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from confluent_kafka import Producer

from benchmarks.data import Shape, Topic
from benchmarks.ours import NAMESPACE, Engine, Moment, asked, catalog_in, measured, task_of, verified
from benchmarks.results import Repeat, document
from benchmarks.throughput import scratch
from examples.pizza_shop.topics import ensure_topic
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest, reset
from kafka_lake.spec.rule import AcceptedValues, Pattern, Range, RuleEntry
from kafka_lake.spec.topic_table import Route, TopicTable, When

_PARTITIONS = 5
_SAUCES, _CHEESES = ("tomato", "bianca", "pesto", "barbecue"), ("mozzarella", "provolone", "vegan")
_BEGIN = datetime(2026, 11, 21, tzinfo=UTC)
DDL = "order_id bigint, store_id int, sauce string, cheese string, total_price double, date_ordered timestamp"
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "order_id", "type": "long"},
            {"name": "store_id", "type": ["null", "int"]},
            {"name": "sauce", "type": ["null", "string"]},
            {"name": "cheese", "type": ["null", "string"]},
            {"name": "total_price", "type": ["null", "double"]},
            {"name": "date_ordered", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }
)
PROTO = """syntax = "proto3";
message Order {
  int64 order_id = 1; int32 store_id = 2; string sauce = 3; string cheese = 4; double total_price = 5;
  int64 date_ordered = 6;
}
"""
JSON_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "order_id": {"type": "integer"},
            "store_id": {"type": "integer"},
            "sauce": {"type": "string"},
            "cheese": {"type": "string"},
            "total_price": {"type": "number"},
            "date_ordered": {"type": "string", "format": "date-time"},
        },
    }
)


def _order(number: int) -> dict[str, Any]:
    moment = _BEGIN + timedelta(milliseconds=number * 37)
    return {
        "order_id": 10_000_000 + number,
        "store_id": number % 97,
        "sauce": _SAUCES[number % 4],
        "cheese": _CHEESES[number % 3],
        "total_price": (800 + number % 2200) / 100,
        "date_ordered": moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{number * 37 % 1000:03}Z",
    }


def _json(number: int, **more: Any) -> bytes:
    return json.dumps({**_order(number), **more}).encode()


def _wide(number: int) -> bytes:
    texts = {f"text_{n}": f"{n} of {number % 1000}" for n in range(5)}
    numbers = {f"number_{n}": number * n for n in range(5)}
    who = {"first": _SAUCES[number % 4], "age": number % 90, "home": {"street": "High Street", "number": number % 300}}
    return _json(number, **texts, **numbers, who=who, ok=number % 2 == 0, at=_order(number + 5)["date_ordered"])


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _micros(number: int) -> int:
    return int(_BEGIN.timestamp() * 1_000_000) + number * 37_000


def _avro(number: int) -> bytes:
    order = _order(number)
    texts = b"".join(
        b"\x02" + _varint(2 * len(text)) + text for text in map(str.encode, (order["sauce"], order["cheese"]))
    )
    head = _varint(2 * order["order_id"]) + b"\x02" + _varint(2 * order["store_id"]) + texts
    return head + b"\x02" + struct.pack("<d", order["total_price"]) + _varint(2 * _micros(number))


def _protobuf(number: int) -> bytes:
    order = _order(number)
    texts = b"".join(
        bytes([tag]) + _varint(len(text)) + text
        for tag, text in ((0x1A, order["sauce"].encode()), (0x22, order["cheese"].encode()))
    )
    head = b"\x08" + _varint(order["order_id"]) + b"\x10" + _varint(order["store_id"]) + texts
    return head + b"\x29" + struct.pack("<d", order["total_price"]) + b"\x30" + _varint(_micros(number))


def _debezium(number: int) -> bytes:
    source = {"connector": "postgresql", "name": "shop", "ts_ms": 1_764_000_000_000 + number, "snapshot": "false"}
    source |= {"db": "shop", "schema": "public", "table": "orders", "lsn": number + 1, "txId": number, "xmin": None}
    source |= {"sequence": json.dumps([str(number), str(number + 1)]), "ts_ns": 1_764_000_000_000_000_000 + number}
    envelope = {"before": None, "after": _order(number), "source": source, "transaction": None, "op": "c"}
    return json.dumps({**envelope, "ts_ms": source["ts_ms"]}, separators=(",", ":")).encode()


_ROW = [{"type": "int64" if name.endswith("_id") else "string", "field": name} for name in _order(0)]
_WITH_SCHEMA = (
    b'{"schema":%s,"payload":'
    % json.dumps(
        {
            "type": "struct",
            "fields": [{"type": "struct", "fields": _ROW, "field": name} for name in ("before", "after")],
        }
    ).encode()
)


@dataclass(frozen=True)
class Source:
    """What a topic has.

    Args:
        value: Gives the value of a record, by its number.
        share: How many records, as a share of the settings' number, 0 to 1; or their number, above 1.
        has_key: Whether records have a key, as JSON.
        first: The first record's number.
        among: How many different numbers there are; 0 for all different.
        dirty: Of how many records one becomes a dead letter; 0 if none does.
    """

    value: Callable[[int], bytes]
    share: float = 1
    has_key: bool = False
    first: int = 0
    among: int = 0
    dirty: int = 0

    def count(self, records: int) -> int:
        """Return how many records the topic has."""
        return int(self.share if self.share > 1 else records * self.share)


TOPICS: Mapping[str, Source] = {
    "orders": Source(_json),
    "orders-400": Source(_json, 400),
    "with-new-field": Source(lambda n: _json(n, promo="x") if n % 100 == 0 else _json(n)),
    "with-object": Source(lambda n: _json(n, note={"a": n} if n % 2 else "text")),
    "with-whole-double": Source(lambda n: _json(n, store_id=float(n % 97)) if n % 100 == 0 else _json(n), dirty=100),
    "with-more": Source(lambda n: _json(n, uuid=str(uuid5(NAMESPACE_OID, str(n))), promo=None, channel="app")),
    "with-map": Source(lambda n: _json(n, tags={"a": "x", f"k{n % 5}": "y"})),
    "with-json-key": Source(_json, has_key=True),
    "wide": Source(_wide, 0.3),
    "large": Source(lambda n: _json(n, note="x" * 10_000), 0.03),
    "in-avro": Source(_avro),
    "in-protobuf": Source(_protobuf),
    "to-upsert": Source(_json, 0.5),
    "changes": Source(lambda n: _json(n, sauce="changed"), 50_000, first=3, among=7),
    "in-debezium": Source(_debezium, 0.3),
    "in-debezium-with-schemas": Source(lambda n: _WITH_SCHEMA + _debezium(n) + b"}", 0.3),
    "changes-400": Source(lambda n: _json(n, sauce="changed again"), 400, first=5, among=11),
}


@dataclass(frozen=True)
class Case:
    """A table, and the topics that fill it one after the other; each is a figure.

    Args:
        steps: Topics, by the name of the figure; a name that begins with an underscore isn't shown.
        settings: Of the table.
        goal: Records per CPU-second, relative to declared JSON.
    """

    steps: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    goal: float | None = None

    @property
    def is_counted(self) -> bool:
        """Return whether the offsets in the one table tell all records apart."""
        return len(self.steps) == 1 and not {"write", "routes"} & self.settings.keys()

    def dead_letters(self, records: int) -> int:
        """Return how many records of the first topic become dead letters."""
        source = TOPICS[next(iter(self.steps.values()))]
        one_in = 100 if _REFUSING in self.settings.get("rules", ()) else source.dirty
        return -(-source.count(records) // one_in) if one_in else 0


_PLAIN: Mapping[str, Any] = {"schema": DDL}
_RULES = (
    RuleEntry(not_null=("store_id",)),
    RuleEntry(accepted_values=AcceptedValues(column="cheese", values=_CHEESES)),
    RuleEntry(range=Range(column="total_price", min=0, max=10_000)),
    RuleEntry(pattern=Pattern(column="sauce", regex="^[A-Za-z ]+$")),
)
_EXPRESSION = RuleEntry(expression="order_id >= 0 AND total_price >= 0.0")
_UNIQUE = RuleEntry(unique=("order_id",))
_REFUSING = RuleEntry(expression="order_id % 100 > 0", name="one_percent")


def _routes(count: int) -> Mapping[str, Any]:
    """Return settings by which each of some stores has a table; the last one has all others."""
    stores = [str(store) for store in range(count)]
    tables = [TopicTable("orders", NAMESPACE, f"of_store_{count}_{store}", schema=DDL) for store in stores]
    whens = [When(field="store_id", values=(store,)) for store in stores]
    return {**_PLAIN, "routes": tuple(Route(when, table) for when, table in zip(whens, tables, strict=True))}


DECLARED = "declared JSON"
CASES: Sequence[Case] = (
    Case({DECLARED: "orders", "append of 400": "orders-400"}, _PLAIN),
    Case({"first commit, inferred": "orders"}, goal=0.85),
    Case({"_seed": "orders-400", "a new field in 1 %": "with-new-field"}, goal=0.7),
    Case({"a decimal column": "orders"}, {"schema": DDL.replace("double", "decimal(10, 2)")}, goal=0.7),
    Case({"a float column": "orders"}, {"schema": DDL.replace("double", "float")}, goal=0.7),
    Case({"a map column": "with-map"}, {"schema": f"{DDL}, tags map<string, string>"}, goal=0.7),
    Case({"objects in a text column": "with-object"}, {"schema": f"{DDL}, note string"}, goal=0.6),
    Case({"12.0 for an int in 1 %": "with-whole-double"}, _PLAIN, goal=0.6),
    Case({"a UUID, a null and a field without a column": "with-more"}, {"schema": f"{DDL}, uuid string"}, goal=0.7),
    Case({"sorted": "orders"}, {**_PLAIN, "sort_by": ("store_id",)}, goal=0.75),
    Case({"format v3": "orders"}, {**_PLAIN, "table_properties": {"format-version": "3"}}, goal=0.95),
    Case({"JSON Schema": "orders"}, {"format": "json_schema", "schema_file": "order.json"}, goal=0.85),
    Case({"JSON keys": "with-json-key"}, {**_PLAIN, "key_format": "json", "key_schema": "id bigint"}, goal=0.8),
    Case({"Avro": "in-avro"}, {"format": "avro", "schema_file": "order.avsc"}, goal=1.25),
    Case(
        {"Protobuf": "in-protobuf"}, {"format": "protobuf", "schema_file": "order.proto", "message": "Order"}, goal=1.25
    ),
    Case({"20 columns, a struct": "wide"}),
    Case({"10 KiB": "large"}, {"schema": f"{DDL}, note string"}),
    Case(
        {"upsert: fill": "to-upsert", "upsert: 50,000 changes": "changes", "upsert: 400 changes": "changes-400"},
        {**_PLAIN, "write": "upsert", "key": ("order_id",), "order_by": ("date_ordered",)},
    ),
    Case({"4 rules": "orders"}, {**_PLAIN, "rules": _RULES}),
    Case({"4 rules and an expression": "orders"}, {**_PLAIN, "rules": (*_RULES, _EXPRESSION)}),
    Case({"4 rules and unique": "orders"}, {**_PLAIN, "rules": (*_RULES, _UNIQUE)}),
    Case({"1 % refused by an expression": "orders"}, {**_PLAIN, "rules": (*_RULES, _REFUSING)}),
    Case({"10 more tables": "orders"}, _routes(10)),
    Case({"upsert: Debezium": "in-debezium"}, {"write": "upsert", "key": ("order_id",), "envelope": "debezium"}),
    Case(
        {"upsert: Debezium with schemas": "in-debezium-with-schemas"},
        {"write": "upsert", "key": ("order_id",), "envelope": "debezium"},
    ),
)
HEADER = ("case", "records per CPU-s", "MB per CPU-s", "CPU-s", "s", "relative to declared JSON", "goal")


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    records: int
    repeats: int = 3
    cases: tuple[str, ...] = ()
    engine: Engine = field(default_factory=Engine)

    def chosen(self) -> list[int]:
        """Return the numbers of the cases that are measured, the one that others are compared with first."""
        wanted = [DECLARED, *self.cases]
        every = not self.cases
        return [n for n, case in enumerate(CASES) if every or any(s.startswith(tuple(wanted)) for s in case.steps)]


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Make the topics, ingest each as its case says, and return the result as JSON has it."""
    result = document("matrix", asdict(settings))
    chosen = settings.chosen()
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        assert broker.pid is not None
        _write_schemas(folder)
        sizes = {}
        for name in dict.fromkeys(topic for n in chosen for topic in CASES[n].steps.values()):
            tell_user(f"{name}: producing {TOPICS[name].count(settings.records):,} records")
            sizes[name] = _fill(broker.bootstrap_servers, name, settings.records)
        topic = Topic(Shape("orders", _PARTITIONS, DDL), settings.records, 0)
        task = task_of(broker.bootstrap_servers, broker.pid, topic, engine=settings.engine, folder=folder)
        turns = [(turn, n) for turn in range(settings.repeats + 1) for n in chosen]
        steps = [(turn, n, label) for turn, n in turns for label in CASES[n].steps]
        reported = {"turns": turns, "sizes": sizes}
        repeats = measured("benchmarks.matrix", task | reported, folder / "engine.log", len(steps), "An ingest failed.")
        catalog = catalog_in(folder).open()
        for turn, n in turns:
            if CASES[n].is_counted:
                _verify(catalog, turn, n, settings.records)
    found: dict[str, list[Repeat]] = {}
    for (turn, _, label), repeat in zip(steps, repeats, strict=True):
        if turn and not label.startswith("_"):
            found.setdefault(label, []).append(repeat)
    return {**result, "cases": {name: [asdict(item) for item in every] for name, every in found.items()}}


def _verify(catalog: Any, turn: int, number: int, records: int) -> None:
    ((label, topic),) = CASES[number].steps.items()
    expected = TOPICS[topic].count(records) - CASES[number].dead_letters(records)
    nothing = Repeat(expected, 0, seconds=1, cpu_seconds=1, broker_cpu_seconds=0)
    done = verified(nothing, catalog, _table(turn, number))
    if done.duplicates or done.rows != expected:
        raise KafkaLakeError(f"{label}: {done.rows} rows, not {expected}; {done.duplicates} are there twice.")


def _table(turn: int, number: int) -> str:
    return f"t{turn}_{number}"


def _write_schemas(folder: Path) -> None:
    for name, text in (("order.avsc", AVRO), ("order.proto", PROTO), ("order.json", JSON_SCHEMA)):
        (folder / name).write_text(text)


def _numbers(source: Source, records: int) -> Iterator[int]:
    for number in range(source.count(records)):
        yield source.first + (number * source.among if source.among else number)


def _fill(bootstrap: str, name: str, records: int) -> tuple[int, int]:
    """Make a topic and its records; return their number and the bytes of their values."""
    source = TOPICS[name]
    ensure_topic(bootstrap, name, _PARTITIONS)
    failures: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1 << 20, "log_level": 0,
                         "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1 << 19})  # fmt: skip

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    count = size = 0
    for number in _numbers(source, records):
        value = source.value(number)
        key = b'{"id": %d}' % number if source.has_key else None
        while len(producer) > 50_000:
            producer.poll(0.05)
        producer.produce(name, value, key, partition=count % _PARTITIONS, on_delivery=delivered)
        count, size = count + 1, size + len(value)
    if producer.flush(120) or failures:
        raise KafkaLakeError(f"Topic {name}: records were not delivered. {failures[:1]}")
    return count, size


def medians(result: Mapping[str, Any]) -> dict[str, Repeat]:
    """Return, of each case, the repeat of the median CPU time."""
    found = {}
    for name, every in result["cases"].items():
        repeats = [Repeat(**repeat) for repeat in every]
        middle = statistics.median_low(repeat.cpu_seconds for repeat in repeats)
        found[name] = next(repeat for repeat in repeats if repeat.cpu_seconds == middle)
    return found


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows."""
    goals = {label: case.goal for case in CASES for label in case.steps}
    middles = medians(result)
    plain = middles[DECLARED]
    rate = plain.records / plain.cpu_seconds
    made: list[tuple[str, ...]] = []
    for name, median in middles.items():
        mine = median.records / median.cpu_seconds
        goal = goals[name]
        made.append(
            (
                name,
                f"{mine:,.0f}",
                f"{median.size / median.cpu_seconds / 1e6:.1f}",
                f"{median.cpu_seconds:.2f}",
                f"{median.seconds:.2f}",
                f"{mine / rate:.2f}",
                "" if goal is None else f"{goal:.2f}",
            )
        )
    return made


def main() -> None:
    """Do what the one argument says, a repeat's JSON a line; the process that is measured."""
    with asked() as it:
        folder = Path(it.task["folder"])
        for turn, number in it.task["turns"]:
            case, so_far = CASES[number], tuple[str, ...]()
            settings = dict(case.settings)
            if "routes" in settings:
                # Each turn fills its own tables.
                prefix = _table(turn, number)
                settings["routes"] = tuple(
                    replace(route, to=replace(route.to, table=f"{prefix}_{route.to.table}"))
                    for route in settings["routes"]
                )
            if "schema_file" in settings:
                settings["schema_file"] = str(folder / settings["schema_file"])
            for topic in case.steps.values():
                so_far = (*so_far, topic)
                count, size = it.task["sizes"][topic]
                several = so_far if len(case.steps) > 1 else ()
                spec = TopicTable(topic, NAMESPACE, _table(turn, number), topics=several, **settings)
                if len(so_far) > 1:
                    # The first commit of another topic scans the table for that topic's rows; a later one doesn't.
                    reset(spec, it.connections, f"bench-{turn}-{number}-{len(so_far)}-begin", "earliest")
                begin = Moment.now(os.getpid(), it.task["broker"])
                ingest(spec, it.connections, f"bench-{turn}-{number}-{len(so_far)}")
                end = Moment.now(os.getpid(), it.task["broker"])
                it.tell(end.since(begin, Topic(Shape(topic, 1, ""), count, size)))


if __name__ == "__main__":
    main()
