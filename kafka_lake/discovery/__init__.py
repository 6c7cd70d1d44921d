"""What an unknown topic holds: its format, its columns, and the YAML that makes a table of it."""
