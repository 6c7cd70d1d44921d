"""Changes of keyed rows: what a record says of which row, told from its key, its value and its envelope."""
