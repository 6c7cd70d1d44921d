"""The unsorted order, which a table that was created with another one doesn't list."""

from pyiceberg.table import Table, Transaction
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, UNSORTED_SORT_ORDER_ID
from pyiceberg.table.update import (
    AddSortOrderUpdate,
    AssertDefaultSortOrderId,
    AssertTableUUID,
    SetDefaultSortOrderUpdate,
    TableRequirement,
    TableUpdate,
)

from kafka_lake.common.tested_versions import is_tested


def list_unsorted(table: Table) -> None:
    """Add the unsorted order to the orders that a table lists, by a commit of its own; the default order stays.

    Raises:
        CommitFailedException: If another writer has changed the table meanwhile. It is as that writer left it.
    """
    if UNSORTED_SORT_ORDER_ID in table.sort_orders():
        return
    added = AddSortOrderUpdate.model_validate({"sort-order": UNSORTED_SORT_ORDER})
    table.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (added,))


def make_unsorted(transaction: Transaction, table: Table) -> None:
    """Make a table unsorted as part of a transaction; files that are there keep their order.

    Private: ``Transaction._apply``. The public ``update_sort_order`` adds order 0 and then makes the order with the
    highest id the default, which is the one that shall go. Without it, or with a version that wasn't tested, this is a
    commit of its own before the transaction's: if the transaction is refused after it, the table is unsorted already,
    and the next attempt does the rest.

    Args:
        transaction: Of the table, not committed yet.
        table: The table that it began with.

    Raises:
        CommitFailedException: If somebody else changed the sort order meanwhile; here, or at the transaction's end.
    """
    known = UNSORTED_SORT_ORDER_ID in table.sort_orders()
    add = () if known else (AddSortOrderUpdate.model_validate({"sort-order": UNSORTED_SORT_ORDER}),)
    updates: tuple[TableUpdate, ...] = (
        *add,
        SetDefaultSortOrderUpdate.model_validate({"sort-order-id": UNSORTED_SORT_ORDER_ID}),
    )
    had = {"default-sort-order-id": table.sort_order().order_id}
    requirements: tuple[TableRequirement, ...] = (AssertDefaultSortOrderId.model_validate(had),)
    if hasattr(transaction, "_apply") and is_tested("pyiceberg"):
        transaction._apply(updates, requirements)
    else:
        table.catalog.commit_table(table, requirements, updates)
