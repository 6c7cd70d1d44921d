"""Tables and the catalog, as a process loads and changes them."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.table import Transaction
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetSnapshotRefUpdate, TableUpdate

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import head_of
from kafka_lake.runtime.context import ignore
from kafka_lake_tests.unit.simulated.history import SCHEMA, Metadata, Record, Snapshot

if TYPE_CHECKING:
    from kafka_lake_tests.unit.simulated.process import Process


class View:
    """A table as loaded at some moment."""

    process: "Process"
    # If another commit comes first, the run plans again: there are no files that could be followed.
    format_version = 1
    io = None

    def __init__(self, identifier: tuple[str, str], load: Callable[[], Metadata | None]) -> None:
        self._identifier, self.load = identifier, load
        self.metadata: Metadata = load() or Metadata({}, {})

    def manage_snapshots(self) -> "RefChanges":
        return RefChanges(self, self.process, self._identifier)

    def transaction(self) -> "RefTransaction":
        return RefTransaction(self)

    @property
    def properties(self) -> dict[str, str]:
        return {"kafka-lake.created": "{}"}

    def refresh(self) -> "View":
        self.metadata = self.load() or self.metadata
        return self

    def name(self) -> tuple[str, str]:
        return self._identifier

    def current_snapshot(self) -> Snapshot | None:
        head = head_of(self, "main")  # type: ignore[arg-type]
        return None if head is None else self.metadata.by_id[head]

    def schema(self) -> Any:
        return SCHEMA

    def specs(self) -> dict[int, Any]:
        return {}

    def content(self) -> tuple[Record, ...]:
        """Return what readers of ``main`` see."""
        snapshot = self.current_snapshot()
        return snapshot.content if snapshot else ()


class RefChanges:
    """PyIceberg's changes of refs: one commit, which asserts what each of them was when the table was loaded.

    The table is as the commit left it afterwards.
    """

    def __init__(self, table: View, process: "Process", identifier: tuple[str, str]) -> None:
        self._table, self._process, self._identifier = table, process, identifier
        self._wanted: dict[str, int | None] = {}

    def create_branch(self, snapshot: int, name: str, *_: int | None) -> "RefChanges":
        self._wanted[name] = snapshot
        return self

    def remove_branch(self, name: str) -> "RefChanges":
        self._wanted[name] = None
        return self

    def commit(self) -> None:
        if "main" in self._wanted:
            what = "publish"
        else:
            what = "drop branch" if None in self._wanted.values() else "create branch"
        refs = self._table.metadata.refs
        expected = {name: refs[name].snapshot_id if name in refs else None for name in self._wanted}
        self._table.metadata = self._process.change_refs(what, self._identifier, expected, self._wanted)


class RefTransaction:
    """PyIceberg's transaction: refs are changed in it, or a snapshot is added to a branch.

    Properties of tables don't count here.
    """

    _set_ref_snapshot = Transaction._set_ref_snapshot

    def __init__(self, table: View) -> None:
        self._table, self.changes = table, table.manage_snapshots()
        self._added: tuple[str, dict[str, str]] | None = None
        self._files: list[Record] = []

    @property
    def table_metadata(self) -> Metadata:
        return self._table.metadata

    def __enter__(self) -> "RefTransaction":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            return
        if self._added is None:
            self.changes.commit()
            return
        table, (branch, properties) = self._table, self._added
        with table.process.operation("commit"):
            # Another process may have dropped the branch since the table was loaded, or have moved it.
            now = table.process.world.tables[table.name()]
            tip = now.refs.get(branch)
            if tip != table.metadata.refs.get(branch):
                raise CommitFailedException(f"branch {branch} has changed")
            content = (*(now.by_id[tip.snapshot_id].content if tip else ()), *self._files)
            table.process.world.commit(table.name(), branch, content, len(self._files), properties)
        table.refresh()

    def update_snapshot(self, snapshot_properties: dict[str, str], branch: str) -> Any:
        self._added = branch, snapshot_properties
        append = SimpleNamespace(append_data_file=self._files.append)
        return SimpleNamespace(merge_append=lambda: nullcontext(append), fast_append=lambda: nullcontext(append))

    def set_properties(self, _: dict[str, str]) -> None:
        """Set nothing."""

    def _apply(self, updates: tuple[TableUpdate, ...], _: Any) -> None:
        for update in updates:
            if isinstance(update, SetSnapshotRefUpdate):
                self.changes.create_branch(update.snapshot_id, update.ref_name)
            else:
                assert isinstance(update, RemoveSnapshotRefUpdate)
                self.changes.remove_branch(update.ref_name)


class SimulatedCatalog(LakeCatalog):
    """The catalog as one process sees it."""

    def __init__(self, process: "Process") -> None:
        super().__init__("lake", {"type": "sql", "uri": "none", "warehouse": "none"})
        self._process = process
        self.pyiceberg = SimpleNamespace(
            create_namespace_if_not_exists=ignore, create_table=self._create, load_table=self.table
        )  # type: ignore[assignment]

    def table(self, identifier: tuple[str, str]) -> Any:
        world = self._process.world

        def load() -> Metadata | None:
            self._process.pass_by("load")
            return world.tables.get(identifier)

        if load() is None:
            return None
        view = world.view(identifier)
        view.load, view.process = load, self._process
        return view

    def _create(self, identifier: tuple[str, str], *_: Any, **__: Any) -> Any:
        with self._process.operation("create table"):
            if identifier in self._process.world.tables:
                raise TableAlreadyExistsError(identifier)
            self._process.world.tables[identifier] = Metadata({}, {})
        return self.table(identifier)
