"""Dead letters: which of them must be removed since their records are rows."""
