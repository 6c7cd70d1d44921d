"""Servers on this machine for the demo, local development, tests and benchmarks. Not for production."""
