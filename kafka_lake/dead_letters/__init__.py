"""Dead letters that must be removed because their records became rows."""
