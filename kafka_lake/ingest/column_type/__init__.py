"""Another type for a column of a table: `change` rewrites the values by one commit, if every one of them stays."""
