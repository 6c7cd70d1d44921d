"""The command line: a module per command or group of commands; `main` puts them together."""
