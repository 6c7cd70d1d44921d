"""Jobs: the reasons to write to a table. Each gives the plans and records of its commits."""
