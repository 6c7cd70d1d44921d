"""JSON texts become Arrow columns."""
