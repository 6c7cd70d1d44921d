"""Metrics for Prometheus, from brokers and tables alone."""
