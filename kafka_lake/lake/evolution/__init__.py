"""What becomes of a table when its records change: the rules of evolution, without an engine and without a network.

Nothing is read or changed here. Paths are column names joined by dots, from the top; ``element``, ``key`` and
``value`` step into lists and maps, as in `kafka_lake.lake.schema.Change`.
"""
