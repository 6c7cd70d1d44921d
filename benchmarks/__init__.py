"""Benchmarks: throughput beside the machine's limits and a peer, and seconds from a record to its row.

``python -m benchmarks --help``; what is measured and how is in ``docs/performance.md``.
"""
