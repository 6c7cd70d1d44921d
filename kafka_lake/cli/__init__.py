"""The command `kafka-lake`; a module in `commands/` for each command."""
