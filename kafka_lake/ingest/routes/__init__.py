"""One topic into several tables: which table takes a record, and what of a plan is a table's share."""
