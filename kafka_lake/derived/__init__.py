"""Tables from tables: a query over tables of ours, computed again for what is new in them, exactly once."""
