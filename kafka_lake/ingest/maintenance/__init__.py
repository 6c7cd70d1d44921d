"""What keeps the tables of a topic in order beside its commits."""
