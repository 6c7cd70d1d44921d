"""Servers on this machine for local development, the demo, tests and benchmarks."""
