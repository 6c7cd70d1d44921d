"""Which table of a topic takes a record."""
