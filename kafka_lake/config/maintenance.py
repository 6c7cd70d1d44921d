"""The group ``maintenance:`` of a table, as documents have it; its fields are those of `Maintenance`."""

from collections.abc import Iterator
from typing import Annotated, Any, get_type_hints

from pydantic import Field, create_model

from kafka_lake.config.settings import Duration, OptionalText, Problem, Settings, ShortFor, TextList
from kafka_lake.ingest.topic_table import pydantic_fields
from kafka_lake.lake.maintenance.policy import Maintenance

_KINDS = get_type_hints(Maintenance, include_extras=True)
_WRITTEN: dict[Any, Any] = {str | None: Duration | None, tuple[str, ...]: TextList}
_IN_A_GROUP = ("keep_rows", "by")


class RowRetention(Settings):
    """How long rows stay: text alone is `older_than`."""

    older_than: Duration = Field(
        description=str(pydantic_fields(Maintenance)["keep_rows"].description), examples=["90d"]
    )
    by: OptionalText = Field(
        default=None, description=str(pydantic_fields(Maintenance)["by"].description), examples=["created_at"]
    )


def _fields() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, declared in pydantic_fields(Maintenance).items():
        if name not in _IN_A_GROUP:
            found[name] = (_WRITTEN.get(_KINDS[name], _KINDS[name]), declared)
    return found


_Fields: Any = create_model("MaintenanceFields", __base__=Settings, **_fields())


class MaintenanceSettings(_Fields):  # type: ignore[misc]
    """How tables are kept fast, and for how long their past is kept. Everything has a default."""

    row_retention: Annotated[RowRetention | None, ShortFor("older_than")] = Field(
        default=None,
        description="Rows and dead letters older than this are deleted: as 90d or 36h, by Kafka's timestamp; or "
        "`{older_than: 90d, by: created_at}`. null for never. For tables with write: append.",
        examples=["90d", {"older_than": "90d", "by": "created_at"}],
    )

    def problems(self) -> Iterator[Problem]:
        """Give what the settings ask for and can't be, whatever the table."""
        if self.row_retention is not None and not self.policy().keep_rows_seconds:
            why = f"{self.row_retention.older_than} would delete every row. Write null to keep all rows"
            yield ("row_retention",), why

    def policy(self, defaults: "MaintenanceSettings | None" = None) -> Maintenance:
        """Return the settings as maintenance takes them."""

        def effective(name: str) -> Any:
            own = defaults is None or name in self.model_fields_set
            return getattr(self if own else defaults, name)

        given = {name: _frozen(effective(name)) for name in pydantic_fields(Maintenance) if name not in _IN_A_GROUP}
        rows: RowRetention | None = effective("row_retention")
        return Maintenance(**given, keep_rows=rows.older_than if rows else None, by=rows.by if rows else None)


def _frozen(value: Any) -> Any:
    """Return the value of a setting as a dataclass has it: what YAML has as a list is a tuple."""
    return tuple(value) if isinstance(value, list) else value
