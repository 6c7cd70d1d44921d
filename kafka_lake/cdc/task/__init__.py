"""Change events become columns of a row and what is done to it."""
