"""History tables (SCD type 2): one row per change event, with `valid_from` and `valid_to`."""
