"""Code that runs inside Spark's Python workers.

It travels to them by value and imports nothing else of kafka_lake, so that a cluster's machines need ``pyarrow`` and
``pyiceberg[pyarrow]`` only, and ``protobuf`` and ``ptars`` for topics of that format.
"""
