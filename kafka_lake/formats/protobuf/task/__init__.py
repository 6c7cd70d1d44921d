"""Protobuf messages become Arrow columns: a batch of messages becomes one Arrow array, column by column.

The machines of a cluster need the packages ``protobuf``, ``ptars``, ``numpy`` and ``pyarrow`` for it.
"""
