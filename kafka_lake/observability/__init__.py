"""Metrics for Prometheus, read from brokers and tables."""
