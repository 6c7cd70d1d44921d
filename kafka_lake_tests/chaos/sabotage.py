"""Ways to break the protocol on purpose, so that the chaos proves that it can fail."""

from collections.abc import Callable
from typing import Any

from kafka_lake.catalog.branches import StagingBranch, nothing
from kafka_lake.catalog.positions import POSITION, head_of


def no_ancestor_check() -> None:
    """Append straight to main, whatever that has become since the position was read from it."""

    def nothing(self: Any, staged: int | None = None) -> None:
        return None

    def main_head(self: Any) -> int | None:
        return head_of(self._catalog.table(self.identifier))

    StagingBranch.write_name = property(lambda self: self._catalog.spark_name(self.identifier))  # type: ignore[assignment,method-assign]
    StagingBranch.staged_snapshot = main_head  # type: ignore[method-assign]
    for name in ("create", "publish", "drop", "discard"):
        setattr(StagingBranch, name, nothing)


def late_position() -> None:
    """Begin the branch at whatever the head is by then, instead of the head that the position was read from."""
    original = StagingBranch.create

    def create(self: Any) -> None:
        table = self._catalog.table(self.identifier)
        self.head = head_of(table) or self.head
        original(self)

    StagingBranch.create = create  # type: ignore[method-assign]


def retry_publish() -> None:
    """After a publication without an answer, stage the same rows again at the new head and publish them."""

    def publish(self: Any, staged: int, *_: Any) -> None:
        try:
            self._move_main(staged, nothing)
        except Exception:
            table = self._catalog.table(self.identifier)
            position = table.metadata.snapshot_by_id(staged).summary.additional_properties[POSITION]
            rows = (
                self._spark.read.option("start-snapshot-id", str(self.head))
                .option("end-snapshot-id", str(staged))
                .table(self._catalog.spark_name(self.identifier))
            )
            again = StagingBranch(self._spark, self._catalog, self.identifier, f"{self.name}_again", head_of(table))
            again.create()
            rows.writeTo(again.write_name).option(f"snapshot-property.{POSITION}", position).append()
            again._move_main(again.staged_snapshot(), nothing)

    StagingBranch.publish = publish  # type: ignore[method-assign]


SABOTAGES: dict[str, Callable[[], None]] = {
    "no-ancestor-check": no_ancestor_check,
    "late-position": late_position,
    "retry-publish": retry_publish,
}
