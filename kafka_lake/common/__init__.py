"""Shared code: offsets, records, text, logs, files, processes, environment variables."""
