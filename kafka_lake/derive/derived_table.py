"""What a derived table shall be: each setting with its type, default and documentation, declared here and only here."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from kafka_lake.common.durations import seconds_of
from kafka_lake.derive.window import TimePartitions
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.rule import Rule, RuleEntry, rules_of
from kafka_lake.ingest.topic_table import TableName
from kafka_lake.lake.maintenance.settings import Maintenance

Write = Literal["append", "upsert", "aggregate", "replace"]
OnChange = Literal["fail", "forward", "rebuild"]
NEWS = "news"
"""What ``every`` is for tables that follow their upstream tables as those change."""
Identifier = tuple[str, str]


@dataclass(frozen=True)
class DerivedTable:
    """A table made of other tables by a query. Settings that can't go together are refused when definitions load."""

    table: TableName = Field(description="Name of the table.")
    sources: tuple[str, ...] = Field(
        serialization_alias="from",
        min_length=1,
        description="The table that new rows come from, as `table` or `namespace.table`; several with "
        "`write: replace`. The query knows it by the last part.",
        examples=[["orders"]],
    )
    write: Write = Field(
        description="`append`: a row for each new row. `upsert`: the newest row of each key. `aggregate`: keys of new "
        "rows are computed again. `replace`: everything is computed again.",
    )
    namespace: TableName = Field(default="lake", description="Iceberg namespace of the table.")
    join: tuple[str, ...] = Field(
        default=(),
        description="Tables that the query reads as they are now. If they change, old rows stay, except with "
        "`write: replace`.",
        examples=[["stores"]],
    )
    sql: str | None = Field(
        default=None, description="The query, in Spark SQL.", examples=["SELECT store_id, total FROM orders"]
    )
    transform: str | None = Field(
        default=None,
        description="Instead of `sql`: `module:function`, from a dict of DataFrames by table name to one DataFrame.",
        examples=["my_project.tables:revenue"],
    )
    key: Mapping[str, str] = Field(
        default_factory=dict,
        description="Columns of the result that identify a row (`upsert`) or a group of rows (`aggregate`). For "
        "`aggregate`, a mapping gives for each the expression over the columns of `from`.",
        examples=[{"hour": "date_trunc('hour', ordered_at)", "store_id": "store_id"}],
    )
    order_by: tuple[str, ...] = Field(
        default=(),
        description="For `upsert`: columns of the result that decide which row of a key is the newest; then Kafka's "
        "offset.",
        examples=[["updated_at"]],
    )
    on_change: OnChange = Field(
        default="fail",
        description="If the query has changed, or upstream rows in a way that snapshots don't show: `fail`; "
        "`rebuild`, to compute everything again in one commit; or, for a changed query, `forward`, to keep old rows.",
    )
    every: str = Field(
        default=NEWS,
        description="When the table is brought up to date: `news`, when an upstream table has changed; a duration, the "
        "same but at most once in that time; or a cron expression.",
        examples=["5m", "0 * * * *"],
    )
    verify: int = Field(
        default=100,
        ge=0,
        description="How many keys (`aggregate`) or records (`append`, `upsert`) of each commit are also computed from "
        "all upstream rows. If a row differs, nothing is published. `0` switches this off.",
        examples=[1000, 0],
    )
    partitions: str | None = Field(
        default=None,
        description="The asset's partitions in Dagster, by a column of the result, and when the first one begins: "
        "`hourly`, `daily` or `monthly`. One, or a range of them, can be computed again by itself. Times are UTC.",
        examples=["daily(ordered_at, 2026-01-01)"],
    )
    partition_by: tuple[str, ...] = Field(
        default=(), description="Iceberg partition transforms.", examples=[["day(hour)"]]
    )
    sort_by: tuple[str, ...] = Field(default=(), description="Columns within each file.", examples=[["store_id"]])
    table_properties: Mapping[str, str] = Field(
        default_factory=dict, description="Iceberg table properties of a new table."
    )

    rules: tuple[RuleEntry, ...] = Field(
        default=(),
        description="[Rules](rules.md) that each commit is checked by before anyone can read it; `on_failure: fail` is "
        "the default here, and `warn` the other choice.",
        examples=[[{"not_null": ["store_id"]}, {"range": {"column": "revenue", "min": 0}, "on_failure": "warn"}]],
    )
    maintenance: Maintenance = Field(
        default=Maintenance(),
        description="How the table is kept fast: after a commit, the run itself compacts small files and expires old "
        "snapshots where that is due.",
        examples=[{"compact_every": 50, "expire_after": "30d"}, {"enabled": False}],
    )

    @property
    def identifier(self) -> Identifier:
        """Return namespace and name of the table."""
        return self.namespace, self.table

    @property
    def identifiers(self) -> tuple[Identifier, ...]:
        """Return the tables that are this one's alone."""
        return (self.identifier,)

    @property
    def name(self) -> str:
        """Return the table's name as messages have it."""
        return ".".join(self.identifier)

    @property
    def upstream(self) -> dict[str, Identifier]:
        """Return the tables of ``from``, by the names that the query knows them by."""
        return {each.rpartition(".")[2]: self._identifier_of(each) for each in self.sources}

    @property
    def joined(self) -> dict[str, Identifier]:
        """Return the tables of ``join``, by the names that the query knows them by."""
        return {each.rpartition(".")[2]: self._identifier_of(each) for each in self.join}

    @property
    def at_most_every(self) -> float | None:
        """Return the seconds between two runs at least, of a table that follows its upstream tables; None by cron."""
        try:
            return 0.0 if self.every == NEWS else seconds_of(self.every)
        except ConfigurationError:
            return None

    @property
    def time_partitions(self) -> TimePartitions | None:
        """Return the partitions of its asset; None if it has none. What is something else is a ConfigurationError."""
        return TimePartitions.of(self.partitions) if self.partitions is not None else None

    @property
    def named_rules(self) -> tuple[Rule, ...]:
        """Return the rules one by one; a row of a table that is made by a query has no dead letter to become."""
        return tuple(replace(each, on_failure=each.entry.on_failure or "fail") for each in rules_of(self.rules))

    @property
    def is_incremental(self) -> bool:
        """Return whether a run reads what is new alone, or computes what that changes."""
        return self.write != "replace"

    @property
    def is_row_wise(self) -> bool:
        """Return whether each row comes from one row of an upstream table, and carries where that came from."""
        return self.write in ("append", "upsert")

    def _identifier_of(self, name: str) -> Identifier:
        namespace, _, table = name.rpartition(".")
        return namespace or self.namespace, table
