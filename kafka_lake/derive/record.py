"""What a derived table's snapshot names as its origin: the query, and the upstream tables as read. Pure.

A derived table is at each moment what its query gives for the upstream snapshots that it names.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pyiceberg.table import Table

from kafka_lake.common.errors import TableError
from kafka_lake.common.offsets import Position
from kafka_lake.lake.positions import DERIVED, ancestors, head_of, read_state, summary_of
from kafka_lake.lake.totals import Totals, totals_of

REBUILD = "rebuild"
"""The kind of a commit that replaces all rows."""
REWRITE = "replace"
"""The kind of a commit that replaces rows of offsets, as `Plan.kind` has it."""
APPEND = "append"
"""The kind of a commit that adds rows of offsets behind the position."""
MERGE = "derive"
"""The kind of a commit that replaces rows of keys."""


@dataclass(frozen=True)
class Read:
    """An upstream table as it was read.

    Args:
        table: Its name.
        uuid: Its id: a table that is dropped and made again has another one.
        snapshot: The one that was read; None if there was none.
        position: How far that holds the topic; None if the table tells none.
        rows: Rows of the snapshot, those that are deleted and still in files included.
        deleted: Deletes in files of their own, that the snapshot has.
        added: Rows that all commits up to then have added.
        rewrites: Commits up to then that did something else than to add rows behind the position.
        expired: Rows that had expired by then.
        schema: Id of the schema by which its columns are known.
    """

    table: str
    uuid: str
    snapshot: int | None
    position: Position | None
    rows: int
    deleted: int
    added: int
    rewrites: int
    expired: int = 0
    schema: int | None = None


@dataclass(frozen=True)
class Record:
    """What a derived table was made of.

    Args:
        query: The fingerprint of the query.
        upstream: The tables of ``from``, by the names that the query knows them by.
        joined: The tables of ``join``, likewise.
        zone: Spark's session time zone, which decides the day of a timestamp; empty if Spark wasn't asked.
    """

    query: str
    upstream: Mapping[str, Read]
    joined: Mapping[str, Read]
    zone: str = ""

    def to_json(self) -> str:
        """Return the text for a snapshot's summary."""
        doc = {
            "query": self.query,
            "from": {name: _document(each) for name, each in self.upstream.items()},
            "join": {name: _document(each) for name, each in self.joined.items()},
            "zone": self.zone,
        }
        return json.dumps(doc, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Parse what `to_json` wrote.

        Raises:
            ValueError: If the text is not such a document.
        """
        try:
            doc = json.loads(text)
            upstream, joined = ({name: _read(each) for name, each in doc[of].items()} for of in ("from", "join"))
            return cls(str(doc["query"]), upstream, joined, zone=str(doc["zone"]))
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"no record of a derived table: {text!r}") from error


def _document(read: Read) -> dict[str, object]:
    return {**asdict(read), "position": json.loads(read.position.to_json()) if read.position else None}


def _read(doc: dict[str, object]) -> Read:
    position = Position.from_json(json.dumps(doc["position"])) if doc["position"] else None
    return Read(**{**doc, "position": position})  # type: ignore[arg-type]


def read_of(table: Table) -> Read:
    """Return what a derived table would record of an upstream table as it was loaded.

    Raises:
        TableError: If a position is there but can't be read.
    """
    state = read_state(table)
    head = table.metadata.snapshot_by_id(state.head) if state.head is not None else None
    summary, totals = summary_of(head) if head else {}, totals_of(table) or Totals()
    return Read(
        table=".".join(table.name()),
        uuid=str(table.metadata.table_uuid),
        snapshot=state.head,
        position=state.position,
        rows=int(summary.get("total-records", 0)),
        deleted=int(summary.get("total-position-deletes", 0)) + int(summary.get("total-equality-deletes", 0)),
        added=totals.rows,
        rewrites=totals.rewrites,
        expired=totals.expired,
        schema=head.schema_id if head else None,
    )


def record_of(table: Table) -> Record | None:
    """Return what a derived table was made of, by the newest ancestor of ``main`` that has it; None without one.

    Raises:
        TableError: If it is there but can't be read.
    """
    for snapshot in ancestors(table, head_of(table)):
        if text := summary_of(snapshot).get(DERIVED):
            try:
                return Record.from_json(text)
            except ValueError as error:
                raise TableError(
                    f"Table {'.'.join(table.name())}: snapshot {snapshot.snapshot_id} carries a {DERIVED} that can't "
                    "be read.",
                    "Upgrade kafka_lake if a newer one wrote it, or run `kafka-lake rebuild`.",
                ) from error
    return None
