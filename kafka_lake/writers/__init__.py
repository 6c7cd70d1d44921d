"""Stage: the rows of one plan, written to a branch of their table that no reader sees."""
