"""Decode: bytes become columns by the topic's format; what can't be decoded is set apart with its reason.

A module per format. Each gives a frame with the columns ``decoded`` (a struct, null where decoding failed),
``error_class`` and ``error_message`` (both null where it did not) beside the record's own.
"""
