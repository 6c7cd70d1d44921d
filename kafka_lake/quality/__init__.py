"""Rules, evaluated on staged rows: by Arrow those of single rows, by Spark all others."""
