"""The group ``write:`` of a table: what a record does to its rows."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator

from kafka_lake.spec.settings import (
    Duration,
    Limit,
    OptionalText,
    Problem,
    Settings,
    TextOrList,
    either,
    one_of,
)
from kafka_lake.spec.topic_table import DeleteMode, TruncateMode


def _columns_or_all(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    return value if isinstance(value, bool) else _COLUMNS.validate_python(value)


_COLUMNS: TypeAdapter[tuple[str, ...]] = TypeAdapter(TextOrList)
ColumnsOrAll = Annotated[bool | tuple[str, ...] | str, WrapValidator(_columns_or_all)]


class Append(Settings):
    """A row for each record."""

    mode: Literal["append"]


class _OfKeys(Settings):
    """Settings that order the changes of a row. Abstract."""

    key: TextOrList = Field(
        default=(),
        description="Columns that identify a row. Default: the record's key.",
        examples=[["order_id"]],
    )
    order_by: TextOrList = Field(
        default=(),
        description="Columns with times or numbers that decide which of two changes of a key is newer. For equal "
        "values, Kafka partition and offset decide. Without `order_by` or Debezium, only the offset decides.",
        examples=[["updated_at"]],
    )
    delete_when: OptionalText = Field(
        default=None,
        description="SQL condition on the row's columns. A change that meets it is a delete.",
        examples=["status = 'removed'"],
    )
    ignore_null_updates: ColumnsOrAll = Field(
        default=False,
        description="Without an envelope: columns in which null means unchanged. `true` means all columns except key "
        "and order.",
        examples=[["email", "phone"]],
    )

    def problems(self) -> Iterator[Problem]:
        """Give what names no column, or one twice."""
        for setting in ("key", "order_by", "track"):
            given = getattr(self, setting, [])
            if wrong := [repr(name) for name in dict.fromkeys(given) if not name.strip() or given.count(name) > 1]:
                yield (setting,), f"{', '.join(wrong)} is empty or occurs twice. Name each column once"


class MergeSnapshot(Settings):
    """Rows of a snapshot are changes like others."""

    mode: Literal["merge"]


class ReplaceBySnapshot(Settings):
    """A snapshot replaces the table's rows."""

    mode: Literal["replace"]
    max_deletes: Limit = Field(
        default="10%",
        description="Maximum number or share of rows to delete at the end of a snapshot. Beyond it, the run fails "
        "before it publishes. `null` removes the limit.",
        examples=["1%"],
    )


_SNAPSHOTS: dict[str, type[Settings]] = {"merge": MergeSnapshot, "replace": ReplaceBySnapshot}
_ANY_SNAPSHOT: Any = either(*_SNAPSHOTS.values(), Literal[tuple(_SNAPSHOTS)])
OnSnapshot = Annotated[_ANY_SNAPSHOT, one_of("mode", _SNAPSHOTS)]


class Upsert(_OfKeys):
    """A row for each key, as its newest change left it; a record without a value takes its key's row away."""

    mode: Literal["upsert"]
    deletes: DeleteMode = Field(
        default="apply",
        description="What a delete does: removes the row (`apply`), keeps it with `_is_deleted = true` (`soft`), "
        "leaves it unchanged (`ignore`), or fails the run before it publishes (`fail`).",
    )
    delete_retention: Duration = Field(
        default="7d",
        description="How long deleted keys are stored. During this time, an older change that arrives late doesn't "
        "restore the row.",
    )
    on_truncate: TruncateMode = Field(
        default="fail",
        description="What a truncate of the source table does: removes older rows (`apply`), keeps them (`ignore`), "
        "or fails the run before it publishes (`fail`).",
    )
    on_snapshot: OnSnapshot = Field(
        default_factory=lambda: MergeSnapshot(mode="merge"),
        description="Debezium: what a new snapshot of the source does. `merge` applies its rows as changes. "
        "`replace` also deletes rows that the snapshot lacks, but fails if that is more than `max_deletes` (10%). "
        "See [new snapshots](upsert-tables.md#truncates-and-new-snapshots).",
        examples=["replace", {"mode": "replace", "max_deletes": "1%"}],
    )


class History(_OfKeys):
    """Each version of each key's row (SCD 2), from `valid_from` to `valid_to`, which is null for the current one."""

    mode: Literal["history"]
    deletes: Literal["apply", "ignore", "fail"] = Field(
        default="apply",
        description="What a delete does: ends the key's version (`apply`), nothing (`ignore`), or fails the run "
        "before it publishes (`fail`).",
    )
    on_truncate: Literal["fail", "ignore"] = Field(
        default="fail",
        description="What a truncate of the source table does: fails the run before it publishes (`fail`), or "
        "nothing (`ignore`).",
    )
    track: TextOrList = Field(
        default=(),
        description="History: columns whose changes start a new version. Other changes update the current version. "
        "Default: all columns.",
        examples=[["status", "address"]],
    )


MODES: dict[str, type[Settings]] = {"append": Append, "upsert": Upsert, "history": History}
_MODE: Any = either(*MODES.values(), Literal[tuple(MODES)])
Write = Annotated[_MODE, one_of("mode", MODES)]
"""A mode by its name, or a group with its name as ``mode``."""


def write_spec(given: Any) -> dict[str, Any]:
    """Return a ``write:`` as fields of `TopicTable`."""
    if isinstance(given, Append):
        # The rows are the changes themselves.
        return {"write": "append", "envelope": "none"}
    found = {
        "write": given.mode,
        "key": given.key,
        "order_by": given.order_by,
        "deletes": given.deletes,
        "delete_when": given.delete_when,
        "on_truncate": given.on_truncate,
        "ignore_null_updates": given.ignore_null_updates,
    }
    if isinstance(given, History):
        return found | {"track": given.track}
    return found | {
        "keep_deletes": given.delete_retention,
        **(
            {"snapshot": "replace", "max_removed": given.on_snapshot.max_deletes}
            if isinstance(given.on_snapshot, ReplaceBySnapshot)
            else {}
        ),
    }
