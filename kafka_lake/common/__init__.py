"""What every package may use: offsets, records, text, logs, files, processes, environment variables."""
