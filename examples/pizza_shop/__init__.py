"""The pizza shop: what `make demo` and `make dev` produce, fill and show."""
