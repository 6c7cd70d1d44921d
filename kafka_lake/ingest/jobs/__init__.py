"""Who asks for commits, and which: a small class for each reason to write to a table."""
