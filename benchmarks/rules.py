"""What rules cost: the same topic with and without them, in turn, in one warm process."""

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.data import FIRST_ID, SMALL, Topic, fill
from benchmarks.ours import NAMESPACE, Engine, Moment, asked, catalog_in, measured, task_of, verified
from benchmarks.results import Repeat, document
from benchmarks.throughput import scratch
from kafka_lake.demo.orders import CHEESES
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.spec.rule import WHOLE_TABLE, AcceptedValues, ForeignKey, OnFailure, Pattern, Range, RuleEntry, Volume
from kafka_lake.spec.topic_table import TopicTable

_ROW_RULES = (
    RuleEntry(not_null=("store_id",)),
    RuleEntry(accepted_values=AcceptedValues("cheese", tuple(CHEESES))),
    RuleEntry(range=Range("total_price", 0, 10_000)),
    RuleEntry(pattern=Pattern("sauce", "^[A-Za-z ]+$")),
    RuleEntry(expression="order_id >= 0 AND total_price >= 0.0"),
)


def _to(table: str, on_failure: OnFailure) -> RuleEntry:
    return RuleEntry(foreign_key=ForeignKey(("order_id",), f"{NAMESPACE}.{table}", ("id",)), on_failure=on_failure)


_REFUSED = "5 rules by Arrow, 1 % of the rows refused"
# Half of the records is in the table when the other half is asked.
_TWO_COMMITS, _TWO_PLAIN = "2 commits", "2 commits, no rules"
_BY_SPARK, _UPSERTED = ", written by Spark", ", upserted"
# A table that is broadcast, and one that isn't.
_OTHERS = {"orders_small": 100_000, "orders_large": 5_000_000}
CASES: Mapping[str, tuple[RuleEntry, ...]] = {
    "no rules": (),
    "4 rules by Arrow": _ROW_RULES[:4],
    "4 rules by Arrow and an expression": _ROW_RULES,
    f"no rules{_BY_SPARK}": (),
    f"4 rules by Arrow{_BY_SPARK}": _ROW_RULES[:4],
    f"4 rules by Arrow and an expression{_BY_SPARK}": _ROW_RULES,
    f"no rules{_UPSERTED}": (),
    f"4 rules by Arrow{_UPSERTED}": _ROW_RULES[:4],
    f"4 rules by Arrow and an expression{_UPSERTED}": _ROW_RULES,
    "4 rules by Arrow, and unique": (*_ROW_RULES[:4], RuleEntry(unique=("order_id",))),
    _REFUSED: _ROW_RULES[:4],
    "4 rules by Arrow, 1 % of the rows refused by an expression": (
        *_ROW_RULES[:4],
        RuleEntry(expression="order_id % 100 > 0", name="one_percent"),
    ),
    "a foreign key to 100,000 rows": (_to("orders_small", on_failure="warn"),),
    "a foreign key to 5,000,000 rows": (_to("orders_large", on_failure="warn"),),
    "volume, by the rows of a day": (RuleEntry(volume=Volume()),),
    _TWO_PLAIN: (),
    "2 commits, unique": (RuleEntry(unique=("order_id",)),),
    "2 commits, unique within the table": (RuleEntry(unique=("order_id",), within=WHOLE_TABLE),),
}
_DAY = 86_400
HEADER = ("case", "records/s", "records per CPU-s", "CPU-s", "CPU beside no rules")


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Args:
        records: In the topic.
        repeats: Of each case, one case after the other, after a first one that isn't counted.
        cases: Names of those to be measured; the first one is what the others are compared with.
        engine: How Spark is set up.
    """

    records: int
    repeats: int = 3
    cases: tuple[str, ...] = tuple(CASES)
    engine: Engine = field(default_factory=Engine)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Make a topic, ingest it with and without rules, and return the result as JSON has it.

    Args:
        settings: What is measured.
        tell_user: Called with a line of progress.

    Raises:
        KafkaLakeError: If an ingest fails, or its table isn't what it is to be.
    """
    result = document("rules", asdict(settings))
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        assert broker.pid is not None
        tell_user(f"producing {settings.records:,} records")
        topic = fill(broker.bootstrap_servers, SMALL, settings.records, seconds_ago=_DAY)
        names = [f"{case}@{n}" for n in range(settings.repeats + 1) for case in settings.cases]
        task = task_of(broker.bootstrap_servers, broker.pid, topic, engine=settings.engine, folder=folder) | {
            "cases": names
        }
        repeats = measured("benchmarks.rules", task, folder / "engine.log", len(names), "An ingest with rules failed.")
        catalog = catalog_in(folder).open()
        found: dict[str, list[Repeat]] = {case: [] for case in settings.cases}
        for number, (name, repeat) in enumerate(zip(names, repeats, strict=True)):
            case = name.partition("@")[0]
            done = verified(repeat, catalog, _table(number))
            if done.duplicates or done.rows != topic.records - _refused(case, topic.records):
                raise KafkaLakeError(f"{case}: {done.rows} rows, {done.duplicates} of them twice.")
            if number >= len(settings.cases):
                found[case].append(done)
    return {**result, "cases": {case: [asdict(each) for each in every] for case, every in found.items()}}


def _rules(case: str, records: int) -> tuple[RuleEntry, ...]:
    refusing = RuleEntry(range=Range("order_id", FIRST_ID + _refused(case, records)), name="one_percent")
    return (*CASES[case], refusing) if case == _REFUSED else CASES[case]


def _refused(case: str, records: int) -> int:
    return -(-records // 100) if "refused" in case else 0


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows: medians of each case."""
    medians = {
        case: tuple(statistics.median(each[name] for each in every) for name in ("seconds", "cpu_seconds"))
        for case, every in result["cases"].items()
    }
    records, first = result["settings"]["records"], next(iter(medians))
    found = []
    for case, (seconds, cpu) in medians.items():
        way = next((each for each in (_BY_SPARK, _UPSERTED) if case.endswith(each)), "")
        plain = _TWO_PLAIN if case.startswith(_TWO_COMMITS) else f"no rules{way}"
        beside = plain if plain in medians else first
        more = f"{cpu / medians[beside][1] - 1:+.1%}"
        found.append((case, f"{records / seconds:,.0f}", f"{records / cpu:,.0f}", f"{cpu:.2f}", more))
    return found


def _table(number: int) -> str:
    return f"t{number}"


def main() -> None:
    """Do what the one argument says, a repeat's JSON a line; the process that is measured."""
    with asked() as it:
        topic = Topic(SMALL, it.task["records"], it.task["size"])
        made = set[str]()
        for number, name in enumerate(it.task["cases"]):
            case = name.partition("@")[0]
            for table, count in _OTHERS.items():
                used = any(rule.foreign_key and rule.foreign_key.table.endswith(table) for rule in CASES[case])
                if used and table not in made:
                    made.add(table)
                    full_name = it.connections.catalog.spark_name((NAMESPACE, table))
                    it.connections.spark().range(count).writeTo(full_name).using("iceberg").create()
            begin = Moment.now(os.getpid(), it.task["broker"])
            spec = TopicTable(SMALL.name, NAMESPACE, _table(number), schema=SMALL.ddl)
            # Spark writes tables of format version 3.
            version = "3" if case.endswith(_BY_SPARK) else "2"
            spec = replace(spec, table_properties={"format-version": version}, rules=_rules(case, topic.records))
            if case.endswith(_UPSERTED):
                spec = replace(spec, write="upsert", key=("order_id",))
            if case.startswith(_TWO_COMMITS):
                spec = replace(spec, max_records_per_commit=-(-topic.records // 2))
            ingest(spec, it.connections, f"bench-{number}")
            it.tell(Moment.now(os.getpid(), it.task["broker"]).since(begin, topic))


if __name__ == "__main__":
    main()
