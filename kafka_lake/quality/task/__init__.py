"""Rules of rows, as tasks evaluate them."""
