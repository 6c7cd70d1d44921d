"""JSON records in Spark's Python workers: parsed, converted to the columns' values, and what no column takes noted."""
