"""Records that became no row: how they are found, kept, and taken out again once they are rows."""
