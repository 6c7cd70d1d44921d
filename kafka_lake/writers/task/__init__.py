"""From batches of JSON records to data files of a table, in Spark's Python workers.

The machines of a cluster need ``pyarrow`` and ``pyiceberg[pyarrow]`` for it.
"""
