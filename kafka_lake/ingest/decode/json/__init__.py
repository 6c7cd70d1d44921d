"""JSON values, by declared columns, by those that the records show, or by a JSON Schema."""
