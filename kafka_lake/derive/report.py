"""What a run of a derived table did, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_lake.ingest.finding import Finding

_MOST_OF_A_TABLE = 0.5
_HARDLY_ANYTHING = 0.01
_FEW_ROWS = 100_000


@dataclass(frozen=True)
class UpstreamRead:
    """What a run read of an upstream table.

    Args:
        snapshot: The snapshot.
        rows: How many rows that has.
        new: How many came since the table was read last; all, if it was read for the first time.
        scanned: How many are in files that had to be read.
    """

    snapshot: int
    rows: int
    new: int
    scanned: int

    @property
    def share(self) -> float:
        """Return the share of the rows that are in files which had to be read."""
        return self.scanned / self.rows if self.rows else 0.0

    @property
    def wasteful(self) -> bool:
        """Return whether most of a large table was read for hardly anything new."""
        return self.rows >= _FEW_ROWS and self.share > _MOST_OF_A_TABLE and self.new < self.rows * _HARDLY_ANYTHING


@dataclass(frozen=True)
class DeriveReport:
    """What a run did.

    Args:
        table: The derived table.
        snapshot: The one that was published; None if there was nothing to do.
        kind: What the commit was; empty if there was none.
        full: Why everything was computed; empty if what is new was enough.
        rows: Rows that came.
        keys: Keys that were computed again; None if it wasn't by key.
        rederived: Offsets whose rows were derived again.
        upstream: What was read of each upstream table, by its name.
        findings: Of its rules.
        late: New rows that came later than ``lookback``; None if they weren't counted.
        seconds: How long the run took.
        waiting: Records that are kept back after it; None if none ever are.
        waiting_since: The least Kafka timestamp of theirs, in milliseconds; None if there are none.
        released: Records that were kept back before, and are no longer.
        unmatched: Records that were computed without a row that they look up.
        waited_in_vain: Records that were kept back before, and expired upstream: nothing was made of them.
        partitions: Keys of the asset's partitions of which rows came, a thousand at most of each commit.
        outside: Rows that came and are of no partition; None if the asset has none.
    """

    table: str
    snapshot: int | None = None
    kind: str = ""
    full: str = ""
    rows: int = 0
    keys: int | None = None
    rederived: int = 0
    upstream: Mapping[str, UpstreamRead] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    late: int | None = None
    seconds: float = 0.0
    waiting: int | None = None
    waiting_since: int | None = None
    released: int = 0
    unmatched: int = 0
    waited_in_vain: int = 0
    partitions: tuple[str, ...] = ()
    outside: int | None = None

    @property
    def wasteful(self) -> dict[str, UpstreamRead]:
        """Return the upstream tables of which too much was read for what was new."""
        return {} if self.full else {name: each for name, each in self.upstream.items() if each.wasteful}
