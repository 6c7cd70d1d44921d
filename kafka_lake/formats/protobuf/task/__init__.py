"""Decodes Protobuf messages to Arrow columns, all messages of a batch at once.

The machines of a cluster need the packages ``protobuf``, ``ptars``, ``numpy`` and ``pyarrow`` for it.
"""
