"""The statements that a run gives to Spark, on records in memory."""

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyiceberg.table.snapshots import Operation
from pyspark.errors import PySparkException

from kafka_lake.common.offsets import OffsetRange
from kafka_lake_tests.unit.simulated.frames import NAME, Frame, Reader, within
from kafka_lake_tests.unit.simulated.history import COLUMNS, Record, identity_of

if TYPE_CHECKING:
    from kafka_lake_tests.unit.simulated.process import Process

_CALL = r"CALL `lake`\.system"
_AGE = r", older_than => TIMESTAMP '1970-01-01 00:00:00'"
_EXPIRE = re.compile(rf"{_CALL}\.expire_snapshots\(table => '{NAME}', snapshot_ids => ARRAY\(([\d, ]+)\)({_AGE})?\)")
_SELECT = re.compile(rf"SELECT \* FROM {NAME} VERSION AS OF (\d+)")
_DELETE = re.compile(rf"DELETE FROM {NAME}\.`branch_(\w+)` WHERE .*")
_DELETED = re.compile(r"partition = (\d+) AND \S+offset >= (\d+) AND \S+offset < (\d+)")
_TOPIC_ID = re.compile(r"topic_id = '([^']*)'")
_DELETED_ONE_BY_ONE = re.compile(r"partition = (\d+) AND offset IN \(([\d, ]+)\)")
_TAKE_OUT = re.compile(
    rf"DELETE FROM {NAME}\.`branch_(\w+)` AS l WHERE \((.*)\) AND EXISTS \(SELECT 1 FROM (\w+) AS g WHERE "
    r"g\.their_topic_id <=> l\.topic_id AND g\.their_partition <=> l\.partition AND "
    r"g\.their_offset <=> l\.offset AND g\.their_timestamp <=> l\.timestamp\)"
)
_TAKEN_OUT = re.compile(r"l\.partition = (\d+) AND l\.offset BETWEEN (\d+) AND (\d+)")


class SimulatedSpark:
    """The statements that kafka_lake makes, interpreted; any other is an error of the test."""

    # Nothing is set, and columns are of no interest.
    conf: Mapping[str, str] = {}

    def __init__(self, process: "Process") -> None:
        self._process, self._world = process, process.world
        self.catalog = SimpleNamespace(dropTempView=process.views.pop)

    def table(self, _: str) -> Any:
        return SimpleNamespace(schema=COLUMNS)

    @property
    def read(self) -> "Reader":
        return Reader(self._process)

    def sql(self, text: str) -> Any:
        for pattern, action in (
            (_EXPIRE, self._expire), (_SELECT, self._select), (_DELETE, self._delete), (_TAKE_OUT, self._take_out),
        ):  # fmt: skip
            if found := pattern.fullmatch(text):
                namespace, name, *rest = found.groups()
                done = action((namespace, name), *rest, *([text] if action == self._delete else []))
                return done if done is not None else SimpleNamespace(collect=list)
        raise NotImplementedError(text)

    def _expire(self, table: tuple[str, str], snapshots: str, age: str | None) -> None:
        with self._process.operation("expire"):
            self._world.expire_staged(table, {int(part) for part in snapshots.split(", ")}, age is not None)

    def _select(self, table: tuple[str, str], snapshot: str) -> "Frame":
        def rows() -> list[Record]:
            found = self._world.tables[table].by_id.get(int(snapshot))
            if found is None:
                raise PySparkException(f"Cannot find snapshot {snapshot}")
            return list(found.content)

        return Frame(self._process, rows)

    def _delete(self, table: tuple[str, str], branch: str, text: str) -> None:
        ranges = [OffsetRange(*map(int, numbers)) for numbers in _DELETED.findall(text)]
        ranges += [
            OffsetRange(int(partition), int(offset), int(offset) + 1)
            for partition, offsets in _DELETED_ONE_BY_ONE.findall(text)
            for offset in offsets.split(", ")
        ]
        assert ranges, text
        with self._process.operation("commit"):
            metadata = self._world.tables[table]
            tip = metadata.refs.get(branch)
            if tip is None:
                raise PySparkException(f"Cannot use branch (does not exist): {branch}")
            held = metadata.by_id[tip.snapshot_id].content
            (topic_id,) = set(_TOPIC_ID.findall(text))
            kept = [r for r in held if not within(ranges)(r) or identity_of(r.topic).topic_id != topic_id]
            self._world.commit(table, branch, kept, operation=Operation.OVERWRITE)

    def _take_out(self, table: tuple[str, str], branch: str, places: str, view: str) -> None:
        ranges = [OffsetRange(int(p), int(first), int(last) + 1) for p, first, last in _TAKEN_OUT.findall(places)]
        gone = {record.key for record in self._process.views[view].source()}
        with self._process.operation("commit"):
            metadata = self._world.tables[table]
            tip = metadata.refs.get(branch) or metadata.refs["main"]
            held = metadata.by_id[tip.snapshot_id].content
            kept = [r for r in held if r.key not in gone or not within(ranges)(r)]
            self._world.commit(table, branch, kept, operation=Operation.OVERWRITE)
