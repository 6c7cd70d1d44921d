"""A log, a catalog and an engine in memory, for histories by the thousand of the real planner and commit protocol.

What is real: `runner`, `pipeline`, `plan`, `read`, `stage`, `audit`, `publish`, `reconcile`, `rebuild`, the jobs,
`clean.sweep`, `branches`, `ensure_table` and `positions`. What is simulated lies below them, and is given to a run as
any other would be: brokers, catalog, session and `Frames` by its connections, `Decoding` by its context.

Every statement, write, load and step of a run is a place where anything may happen (`Event`): the process dies, an
answer is lost, another whole run comes between, Kafka deletes records, somebody compacts, expires or rolls back.
"""
