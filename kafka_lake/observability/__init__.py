"""Metrics for Prometheus, from brokers and tables alone: neither Dagster nor a run in progress is needed."""
