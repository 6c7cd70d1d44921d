"""The history of a keyed table (SCD 2): a row for each event of a key, and from when until when it counts."""
